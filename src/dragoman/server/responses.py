"""Stored responses and conversations over HTTP: requests that refer to them, and the paths of both."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from dragoman.net.http_request import HttpRequest
from dragoman.net.limits import limits_for
from dragoman.net.socket_sink import SocketSink
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.kept_resource import KeptResource, RecordStatus
from dragoman.proxy.serve import Services, serve_lane
from dragoman.proxy.steps.restore_state import ReplayedState, StoredState
from dragoman.server.background import BackgroundApi
from dragoman.server.routes import AccessRole, Cost, HttpRoute, RoutedRequest, make_not_found, respond_json
from dragoman.server.unknown_models import HoldBack
from dragoman.state.conversations import Conversations, render
from dragoman.state.service import ResponseService, includes_opaque, read_page
from dragoman.store.response_rows import ResponseRow
from dragoman.tenancy.keys import KeyId, Keyring
from dragoman.translate.framing.fields import read_body
from dragoman.translate.framing.url_paths import quote_name
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.request import Json
from dragoman.translate.protocols import find_client_keys
from dragoman.translate.protocols.responses.errors import render_error
from dragoman.translate.protocols.responses.wire import NAME

if TYPE_CHECKING:
    from dragoman.proxy.capture.lookups import Lookups
    from dragoman.server.websocket import ResponsesSocket


PATH = "/responses"
NO_SOCKET = Failure(
    Kind.BAD_REQUEST,
    "WebSockets (version 13) are served at /v1/responses, by a gateway with a store; else use HTTP there.",
    code="upgrade_required",
)
TOO_MANY_SOCKETS = Failure(
    Kind.RATE_LIMITED,
    "This key has as many WebSockets open as it may: a quarter of all connections. Close some, or use HTTP.",
)
SOCKET_SHARE = 0.25  # of all connections, that the WebSockets of one key may take
_INTEGER = re.compile("-?[0-9]{1,9}")
CONVERSATIONS = "/conversations"


class ResponsesApi:
    """Answers requests about the responses of one client key at a time."""

    protocol = NAME

    def __init__(self, gateway: Gateway, service: ResponseService, background: BackgroundApi, keyring: Keyring) -> None:
        self._gateway = gateway
        self.service = service
        self.background = background
        self.state = StoredState(service)
        self.counted_state = StoredState(service, keeps=False)
        self._keyring, self._tenant = keyring, keyring.tenant
        self._conversations = ConversationsApi(Conversations(service), keyring.tenant)
        self._sockets: set[ResponsesSocket] = set()
        self._open: Counter[KeyId] = Counter()  # WebSockets by key
        self._is_stopping = False

    def routes(self, services: Services, hold_back: HoldBack) -> Iterator[HttpRoute]:
        """Yield the routes of what is kept; `hold_back` is awaited before a request of a WebSocket is refused."""
        open_socket = partial(self._open_socket, services, hold_back)
        yield HttpRoute("GET", PATH, AccessRole.CLIENT, open_socket, refuses=True, story=serve_lane, cost=Cost.COSTS)
        yield from self._conversations.routes()
        yield HttpRoute("GET", f"{PATH}/*", AccessRole.CLIENT, self._get)
        yield HttpRoute("DELETE", f"{PATH}/*", AccessRole.CLIENT, self._delete)
        yield HttpRoute("POST", f"{PATH}/*", AccessRole.CLIENT, self._post, cost=Cost.FREE)

    async def _open_socket(self, services: Services, hold_back: HoldBack, request: RoutedRequest) -> None:
        from dragoman.net.websocket import WebSocket, wants_websocket
        from dragoman.server.lane_requests import SocketServices
        from dragoman.server.websocket import ResponsesSocket  # few clients use it

        sink, key = request.sink, request.key
        if not isinstance(sink, SocketSink) or not wants_websocket(request.http.headers):
            await refuse_websocket(request)
            return
        config = self._gateway.runtime.config
        if self._open[key] >= limits_for(config.server).max_connections * SOCKET_SHARE:
            await refuse_websocket(request, TOO_MANY_SOCKETS)
            return
        used = SocketServices(services, self.service, NAME, hold_back, self._is_authorised)
        socket = ResponsesSocket(used, request, WebSocket(request.http, sink, config.server.max_body_bytes))
        socket.is_retired = self._is_stopping
        self._sockets.add(socket)
        self._open[key] += 1
        try:
            await socket.run()
        finally:
            self._sockets.discard(socket)
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    def _is_authorised(self, request: HttpRequest) -> bool:
        """Return whether the key of a request is still valid: it may have been revoked, or have expired."""
        return any(map(self._keyring.check, find_client_keys(request.headers.fields, request.query)))

    def begin_stop(self) -> None:
        """Take no more background responses, and close every WebSocket once no request is under way on it."""
        self.background.runs.stop_taking()
        self._is_stopping = True
        for socket in tuple(self._sockets):
            socket.retire()

    async def _get(self, request: RoutedRequest) -> None:
        id, _, what = request.rest.partition("/")
        parameters = parse_qsl(request.http.query, keep_blank_values=True)
        if what == "input_items":
            page = read_page(parameters)
            row = await self._find(request, id)
            if not await self._relay_to_keeper(request, row, f"/{what}"):
                respond_json(request, await self.service.list_input(row, page))
            return
        if what:
            raise make_not_found(request)
        after = _read_cursor(parameters)
        row = await self._find(request, id)
        if await self._relay_to_keeper(request, row):
            return
        if after is not None:
            await self.background.follow(request, row, after)
            return
        respond_json(request, await self.service.render(row, shows_hidden=includes_opaque(parameters)))

    async def _delete(self, request: RoutedRequest) -> None:
        if "/" in request.rest:
            raise make_not_found(request)
        row = await self._find(request, request.rest)

        async def forget(status: int) -> None:
            if status < 300 or status == 404:  # else the provider still has it, and the client may try again
                await self.service.ask(self.service.store.delete_response(row.owner, row.id))

        if await self._relay_to_keeper(request, row, record_status=forget):
            return
        deleted = await self.service.delete(row.owner, row.id)
        self.background.runs.stop_running(row)
        respond_json(request, deleted)

    async def _post(self, request: RoutedRequest) -> None:
        id, _, what = request.rest.partition("/")
        if what != "cancel":
            raise make_not_found(request)
        row = await self._find(request, id)
        if not await self._relay_to_keeper(request, row, f"/{what}"):
            respond_json(request, await self.background.cancel(row))

    async def _find(self, request: RoutedRequest, id: str) -> ResponseRow:
        return await self.service.find(self._tenant(request.key), id)

    async def _relay_to_keeper(
        self, request: RoutedRequest, row: ResponseRow, below: str = "", record_status: RecordStatus | None = None
    ) -> bool:
        """Pass the request on to the provider that keeps the response itself; return whether there is one."""
        if not row.keeper:
            return False
        path = f"{PATH}/{quote_name(row.id, '/response_id')}{below}"
        kept = KeptResource(self._gateway.runtime, row.keeper, row.account, NAME, path)
        await kept.relay(request.http, request.sink, request.request_id, record_status)
        return True


def _read_cursor(parameters: list[tuple[str, str]]) -> int | None:
    """Return the number of the event after which a stream is requested, -1 for all of it; None: no stream is."""
    given = dict(parameters)
    after = given.get("starting_after", "-1")
    if not _INTEGER.fullmatch(after):
        raise BadRequest("/starting_after", f"starting_after must be an integer, got {after[:80]!r}.")
    stream = given.get("stream", "false").lower()
    if stream not in ("true", "false", "1", "0"):
        raise BadRequest("/stream", f"stream must be true or false, got {stream[:80]!r}.")
    return max(-1, int(after)) if stream in ("true", "1") else None


class ReplayedResponses:
    """The state that was recorded with a captured request, in place of what is kept."""

    protocol = NAME

    def __init__(self, lookups: "Lookups") -> None:
        self.state = self.counted_state = ReplayedState(lookups)


def refuse_state() -> Iterator[HttpRoute]:
    """Yield the routes of a gateway that has no store: they say so."""
    yield HttpRoute("GET", PATH, AccessRole.CLIENT, refuse_websocket, refuses=True)
    for method in ("GET", "POST", "DELETE"):
        for path in (f"{PATH}/*", CONVERSATIONS, f"{CONVERSATIONS}/*"):
            cost = Cost.FREE if method == "POST" else None
            yield HttpRoute(method, path, AccessRole.CLIENT, _refuse_stored_responses, refuses=True, cost=cost)


async def refuse_websocket(request: RoutedRequest, why: Failure = NO_SOCKET) -> None:
    """Answer 426, which makes Codex fall back to HTTP at once; any other status costs it seconds."""
    respond_json(request, render_error(why, request.request_id).body, 426)


async def _refuse_stored_responses(request: RoutedRequest) -> None:
    message = "This gateway keeps no responses: server state is not available, send the whole input."
    raise RequestError(Failure(Kind.NOT_FOUND, message))


class ConversationsApi:
    """Answers requests about the conversations of one client key at a time."""

    def __init__(self, conversations: Conversations, tenant: Callable[[KeyId], str]) -> None:
        self._conversations = conversations
        self._tenant = tenant

    def routes(self) -> Iterator[HttpRoute]:
        yield HttpRoute("POST", CONVERSATIONS, AccessRole.CLIENT, self._create, cost=Cost.FREE)
        yield HttpRoute("GET", f"{CONVERSATIONS}/*", AccessRole.CLIENT, self._get)
        yield HttpRoute("POST", f"{CONVERSATIONS}/*", AccessRole.CLIENT, self._post, cost=Cost.FREE)
        yield HttpRoute("DELETE", f"{CONVERSATIONS}/*", AccessRole.CLIENT, self._delete)

    async def _create(self, request: RoutedRequest) -> None:
        respond_json(request, await self._conversations.create(self._tenant(request.key), await _read_body(request)))

    async def _get(self, request: RoutedRequest) -> None:
        owner, parameters = self._tenant(request.key), parse_qsl(request.http.query, keep_blank_values=True)
        match request.rest.split("/"):
            case [id]:
                respond_json(request, render(await self._conversations.find(owner, id)))
            case [id, "items"]:
                respond_json(request, await self._conversations.list(owner, id, read_page(parameters)))
            case [id, "items", item]:
                shows = includes_opaque(parameters)
                respond_json(request, await self._conversations.item(owner, id, item, shows_hidden=shows))
            case _:
                raise make_not_found(request)

    async def _post(self, request: RoutedRequest) -> None:
        owner, raw = self._tenant(request.key), await _read_body(request)
        match request.rest.split("/"):
            case [id]:
                respond_json(request, await self._conversations.update(owner, id, raw))
            case [id, "items"]:
                respond_json(request, await self._conversations.add(owner, id, raw))
            case _:
                raise make_not_found(request)

    async def _delete(self, request: RoutedRequest) -> None:
        owner = self._tenant(request.key)
        match request.rest.split("/"):
            case [id]:
                respond_json(request, await self._conversations.delete(owner, id))
            case [id, "items", item]:
                respond_json(request, await self._conversations.delete_item(owner, id, item))
            case _:
                raise make_not_found(request)


async def _read_body(request: RoutedRequest) -> dict[str, Json]:
    return read_body(await request.http.body() or b"{}")

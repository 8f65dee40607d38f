"""Check a request, find its route and respond in the protocol of its client."""

import itertools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dragoman import __version__
from dragoman.net import current_request
from dragoman.net.errors import ClientDisconnected, RequestRejected, describe_fault
from dragoman.net.headers import JSON, Header, asks_for_websocket
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink, SinkPhase
from dragoman.operate.metrics.readings import CONTENT_TYPE
from dragoman.proxy.call import Compacts
from dragoman.proxy.failures import respond_with_failure
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.request_record import find_client_request_id
from dragoman.proxy.response_headers import id_headers, request_id_headers
from dragoman.proxy.serve import Services, count, relay, serve
from dragoman.proxy.steps.parked_runs import ParkedRuns, find_worker
from dragoman.server.api.table import AdminApi
from dragoman.server.api.wire import PREFIX as API
from dragoman.server.api.wire import PRIVATE, use_api_errors
from dragoman.server.models import ModelsApi
from dragoman.server.rejections import AuthBackoff, HostCheck, find_keys, key_failure, transport_failure
from dragoman.server.responses import NO_SOCKET, ReplayedResponses, ResponsesApi, refuse_state
from dragoman.server.responses import PATH as SOCKET_PATH
from dragoman.server.routes import (
    MODEL,
    AccessRole,
    Cost,
    ForwardedSender,
    HttpRoute,
    RoutedRequest,
    RouteMatch,
    RouteTable,
    check_role,
    client_at,
    make_call,
    make_record,
    plain_path,
    respond_json,
)
from dragoman.server.unknown_models import UnknownModelDelay
from dragoman.tenancy.keys import KeyId, Keyring, digest_presented
from dragoman.translate.framing.redaction import redact_path
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.ports import Client
from dragoman.translate.protocols.relayed_paths import CLIENT as RELAYED_CLIENT
from dragoman.translate.protocols.relayed_paths import RELAYED_PATHS, RelayedPath

if TYPE_CHECKING:
    from dragoman.proxy.capture.lookups import Lookups
    from dragoman.server.console.site import Console
    from dragoman.server.worker_group import WorkerGroup

log = logging.getLogger(__name__)

NO_KEY = KeyId("")
WITHOUT_KEY = (AccessRole.PUBLIC, AccessRole.SESSION)
OF_CONSOLE = (API, "/console")  # paths whose errors have the admin API's shape, and are not cached


class RequestHandler:
    """Handles every request to the gateway."""

    def __init__(
        self,
        gateway: Gateway,
        keyring: Keyring,
        host_check: HostCheck,
        scrape: Callable[[], Awaitable[bytes]],
        api: AdminApi | None = None,
        responses: ResponsesApi | ReplayedResponses | None = None,
    ) -> None:
        self._gateway = gateway
        self._keyring = keyring
        self._scrape = scrape
        self._api = api
        self.responses = responses
        self.parked_runs = ParkedRuns(lambda: gateway.runtime.config.responses)
        self.services = self._make_services()
        self.host_check = host_check
        self.auth_backoff = AuthBackoff()
        self.unknown_models = UnknownModelDelay()
        self.ready = True
        self._started_at = time.monotonic()
        # Request ids are unique without asking the system for chance each time: drawn once, then counted.
        self._drawn = secrets.token_hex(8)
        self._counted = itertools.count(1)
        self.make_request_id: Callable[[], str] = self._count_request
        self.now: Callable[[], float] = time.time
        self.console: Console | None = None
        self._group: WorkerGroup | None = None
        self.routes = RouteTable(self._table())

    @property
    def under_way(self) -> int:
        """How many model requests are being answered."""
        return self._gateway.observers.under_way

    def _make_services(self) -> Services:
        responses = self.responses
        if responses is None:
            return Services(self._gateway, self.parked_runs)
        background = responses.background.runs if isinstance(responses, ResponsesApi) else None
        state, counted = responses.state, responses.counted_state
        return Services(self._gateway, self.parked_runs, state, counted, background)

    def set_console(self, console: "Console | None") -> None:
        """Serve the console from now on, or not."""
        if console is self.console:
            return
        self.console = console
        self.services.live = None if console is None else console.live
        self.routes = RouteTable(self._table())

    def join_group(self, group: "WorkerGroup") -> None:
        """Pass requests on to the workers that have their runs."""
        self._group = group
        self.parked_runs.join_group(group)

    def start_background(self) -> None:
        """Run queued responses from now on, if there are any."""
        if isinstance(self.responses, ResponsesApi):
            self.responses.background.start(self.services, self._hold_back_of, self.find_room)

    def find_room(self) -> int:
        """Return how many more requests may be answered at the same time; negative after the limit was lowered."""
        return self._gateway.runtime.config.server.max_requests - self.under_way

    def _table(self) -> Iterator[HttpRoute]:
        for path, handler in (
            ("/", self._root),
            ("/health", self._health),
            ("/healthz", self._health),
            ("/ready", self._ready),
            ("/readyz", self._ready),
            ("/metrics", self._metrics),
            ("/api/hello", self._hello),
        ):
            yield HttpRoute("GET", path, AccessRole.PUBLIC, handler)
        models = ModelsApi(self._gateway)
        for name, protocol in self._gateway.runtime.protocols.items():
            client = protocol.client
            for path in () if client is None else client.paths:
                yield HttpRoute(
                    "POST", path, AccessRole.CLIENT, partial(self._serve, name, None), story=serve, cost=Cost.COSTS
                )
            for path in () if client is None or client.counting is None else client.counting.paths:
                yield HttpRoute(
                    "POST", path, AccessRole.CLIENT, partial(self._count, name), story=count, cost=Cost.FREE
                )
            for path in () if protocol.models is None else protocol.models.paths:
                yield HttpRoute("GET", path, AccessRole.CLIENT, partial(models.list_models, protocol.models))
                yield HttpRoute("GET", f"{path}/*", AccessRole.CLIENT, partial(models.show_model, protocol.models))
        yield HttpRoute("GET", "/models", AccessRole.CLIENT, partial(models.list_models, None))
        yield HttpRoute("GET", "/models/*", AccessRole.CLIENT, partial(models.show_model, None))
        for relayed in RELAYED_PATHS.values():
            passed_on = partial(self._relay, relayed)
            yield HttpRoute("POST", f"/{relayed.name}", AccessRole.CLIENT, passed_on, story=relay, cost=Cost.COSTS)
        yield from () if self._api is None else self._api.routes(lambda: self.routes.routes)
        yield from () if self.console is None else self.console.routes()
        if self.responses is not None:
            path, compact = f"{SOCKET_PATH}/compact", partial(self._serve, self.responses.protocol, Compacts.BY_PATH)
            yield HttpRoute("POST", path, AccessRole.CLIENT, compact, story=serve, cost=Cost.COSTS)
        if isinstance(self.responses, ResponsesApi):
            yield from self.responses.routes(self.services, self._hold_back_of)
        else:
            yield from refuse_state()

    async def __call__(self, request: HttpRequest, sink: ReplySink, sender: ForwardedSender | None = None) -> None:
        """Answer a request. `sender`: another worker of the gateway has checked it, and passes it on."""
        request_id = self.make_request_id() if sender is None else sender.request_id
        if request.headers.get(b"x-request-id") is not None:
            sink.echoed_id = find_client_request_id(request.headers).encode()
        current_request.request_id.set(request_id)
        path = plain_path(request.path)
        try:
            found = self.routes.find(request.method, path)
            if found is None or found.route.story is not serve:  # it decides itself when
                sink.allow_leaving()
            if sender is None:
                await self._dispatch(request, sink, path, request_id, found)
            else:
                await self._dispatch_forwarded(request, sink, path, request_id, found, sender)
        except RequestError as refused:
            self._gateway.refused += 1
            if not refused.observed:
                log.info("%s refused: %s", redact_path(path), refused.failure.kind.value)
            sink.allow_leaving()
            await self.unknown_models.hold_back(refused, request, self._key)
            self._refuse(request, sink, path, refused, request_id)
        except ClientDisconnected:
            raise
        except RequestRejected as rejected:
            self._refuse(request, sink, path, RequestError(transport_failure(rejected)), request_id)
        except Exception as bug:
            log.error("%s failed: %s", redact_path(path), describe_fault(bug))
            if sink.phase >= SinkPhase.SENT:
                sink.abort()
                return
            message = f"The gateway failed on this request. See the gateway's log for {request_id}."
            self._refuse(request, sink, path, RequestError(Failure(Kind.BUG, message)), request_id)
        finally:
            if sink.listener is not None:
                sink.listener.on_end()

    def _refuse(self, request: HttpRequest, sink: ReplySink, path: str, refused: RequestError, request_id: str) -> None:
        private = PRIVATE if path.startswith(OF_CONSOLE) else ()
        respond_with_failure(sink, self._client(request, path), refused, request_id, private)

    def _dispatch(
        self, request: HttpRequest, sink: ReplySink, path: str, request_id: str, found: RouteMatch | None
    ) -> Awaitable[None]:
        """Return what handles a request. Raises RequestError if its key may not do this."""
        host_error = self.host_check.find_error(request.headers)
        if host_error is not None:
            return self._respond_with_status(request, sink, path, request_id, *host_error)
        if request.method == "GET" and path != SOCKET_PATH and asks_for_websocket(request.headers):
            return self._respond_with_status(request, sink, path, request_id, 426, NO_SOCKET)
        if found is not None and found.route.role in WITHOUT_KEY:
            return found.route.handler(RoutedRequest(request, sink, path, request_id, NO_KEY, found.rest))
        key = self._key(request)
        if key is None:
            return self._dispatch_without_key(request, sink, path, request_id, found)
        return self._dispatch_with_key(request, sink, path, request_id, found, key)

    def _dispatch_with_key(
        self,
        request: HttpRequest,
        sink: ReplySink,
        path: str,
        request_id: str,
        found: RouteMatch | None,
        key: KeyId,
        *,
        via_console: bool = False,
    ) -> Awaitable[None]:
        if found is None:
            return self._refuse_path(request, sink, path, request_id)
        access = self._keyring.access(key)
        check_role(found.route, access)
        tenant, now = self._keyring.tenant(key), self.now()
        routed = RoutedRequest(
            request, sink, path, request_id, key, found.rest, access, via_console, False, tenant, now
        )
        return found.route.handler(routed)

    async def _dispatch_without_key(
        self, request: HttpRequest, sink: ReplySink, path: str, request_id: str, found: RouteMatch | None
    ) -> None:
        """Handle a request of a browser that is signed in to the console; raises RequestError for any other."""
        key = None if self.console is None else await self.console.find_key(request)
        if key is not None:
            await self._dispatch_with_key(request, sink, path, request_id, found, key, via_console=True)
            return
        sink.allow_leaving()
        had_key = bool(find_keys(request))
        await self.auth_backoff.reject(request.address, path, had_key=had_key)
        raise RequestError(key_failure(request), observed=True)  # by the backoff, which logs many in one line

    async def _respond_with_status(
        self,
        request: HttpRequest,
        sink: ReplySink,
        path: str,
        request_id: str,
        status: int,
        failure: Failure,
        *fields: Header,
    ) -> None:
        """Send a failure with a status that no kind of failure has."""
        client = self._client(request, path)
        body = client.render_error(failure, request_id).body
        sink.respond(status, [JSON, *fields, *id_headers(client, request_id, [])], body)

    async def _dispatch_forwarded(
        self,
        request: HttpRequest,
        sink: ReplySink,
        path: str,
        request_id: str,
        found: RouteMatch | None,
        sender: ForwardedSender,
    ) -> None:
        if not self._keyring.is_valid(sender.key):  # it may be so new that this worker does not know it yet
            await self._keyring.refresh()
        if found is None or not self._keyring.is_valid(sender.key):
            raise RequestError(key_failure(request))
        access = self._keyring.access(sender.key)
        check_role(found.route, access)
        tenant, now, via_console = self._keyring.tenant(sender.key), time.time(), sender.via_console
        routed = RoutedRequest(
            request, sink, path, request_id, sender.key, found.rest, access, via_console, True, tenant, now
        )
        await found.route.handler(routed)

    def _key(self, request: HttpRequest) -> KeyId | None:
        """Return the id of the valid key that the request carries; None if it carries none."""
        digests = request.key_digests
        if not digests:
            digests += digest_presented(find_keys(request))
        for digest in digests:
            key = self._keyring.find_valid(digest)
            if key is not None:
                request.mark_authenticated()
                return key
        return None

    def _serve(self, protocol: str, compacts: Compacts | None, request: RoutedRequest) -> Awaitable[None]:
        if self._group is not None:
            return self._serve_in_group(self._group, protocol, compacts, request)
        return serve(self.services, make_call(self._gateway.runtime, protocol, request, compacts), request.sink)

    async def _serve_in_group(
        self, group: "WorkerGroup", protocol: str, compacts: Compacts | None, request: RoutedRequest
    ) -> None:
        """Answer a request, here or on the worker that has its run or its idempotency key."""
        http, tenant = request.http, request.tenant
        worker = find_worker(http, tenant, group.count)
        if worker is None and not request.is_forwarded:
            worker = await self.parked_runs.find_lost_elsewhere(group, http, tenant)
        if worker is None or worker == group.number:
            call = make_call(self._gateway.runtime, protocol, request, compacts)
            await serve(self.services, call, request.sink)
        else:
            await group.forward(request, worker)

    def _count(self, protocol: str, request: RoutedRequest) -> Awaitable[None]:
        return count(self.services, make_call(self._gateway.runtime, protocol, request), request.sink)

    def _relay(self, path: RelayedPath, request: RoutedRequest) -> Awaitable[None]:
        from dragoman.proxy.relay import RelayedCall

        record = make_record(path.name, request)
        return relay(self.services, RelayedCall(path, request.http, request, record), request.sink)

    async def _hold_back_of(self, refused: RequestError, request: RoutedRequest) -> None:
        """Hold back the refusal of a request that did not come by itself over HTTP."""
        await self.unknown_models.hold_back(refused, request.http, lambda _: request.key)

    async def _refuse_path(self, request: HttpRequest, sink: ReplySink, path: str, request_id: str) -> None:
        """Respond with 405 if the path has other methods; raises RequestError (404) if it has none."""
        client = self._client(request, path)
        allowed = ", ".join(self.routes.methods(path))
        # Where the path ends with a verb, another verb is another path, even if GET finds a model there.
        is_unknown_verb = request.method == "POST" and ":" in path and any(MODEL in at for at in client.paths)
        if not allowed or is_unknown_verb:
            raise RequestError(Failure(Kind.NOT_FOUND, f"There is nothing at {request.method} {request.path}."))
        message = f"{request.method} is not possible on {request.path}, only {allowed}."
        failure = Failure(Kind.BAD_REQUEST, message, code="method_not_allowed")
        allow = (b"allow", allowed.encode())
        await self._respond_with_status(request, sink, path, request_id, 405, failure, allow)

    async def _root(self, request: RoutedRequest) -> None:
        http = request.http
        is_browser = http.method == "GET" and b"text/html" in (http.headers.get(b"accept") or b"")
        if self.console is not None and is_browser:
            request.sink.respond(302, [(b"location", b"/console"), *request_id_headers(request.request_id)], b"")
            return
        body = {"status": "ok", "message": "dragoman is running", "version": __version__}
        respond_json(request, msgspec.json.encode(body))

    async def _hello(self, request: RoutedRequest) -> None:
        respond_json(request, b"{}")

    async def _health(self, request: RoutedRequest) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        uptime = round(time.monotonic() - self._started_at, 3)
        body = {"status": "healthy", "timestamp": now, "version": __version__, "uptime_s": uptime}
        respond_json(request, msgspec.json.encode(body))

    async def _ready(self, request: RoutedRequest) -> None:
        status, word = (200, "ready") if self.ready else (503, "draining")
        respond_json(request, msgspec.json.encode({"status": word}), status)

    async def _metrics(self, request: RoutedRequest) -> None:
        head = [(b"content-type", CONTENT_TYPE), *request_id_headers(request.request_id)]
        request.sink.respond(200, head, await self._scrape())

    def _count_request(self) -> str:
        return f"req_{self._drawn}{next(self._counted):08x}"

    def _client(self, request: HttpRequest, path: str) -> Client:
        if path.removeprefix("/") in RELAYED_PATHS:
            return RELAYED_CLIENT
        client = client_at(request.method, path, self._gateway.runtime.protocols, request.headers.get)
        return use_api_errors(client) if path.startswith(OF_CONSOLE) else client


def replay_site(gateway: Gateway, keyring: Keyring, lookups: "Lookups", request_id: str) -> RequestHandler:
    """Return the handler of a replayed request, which has this id: only clients on this machine, and no metrics."""

    async def scrape() -> bytes:
        return b""

    responses = ReplayedResponses(lookups)
    handler = RequestHandler(gateway, keyring, HostCheck("127.0.0.1", ()), scrape, responses=responses)
    handler.make_request_id, handler.now = lambda: request_id, gateway.now
    return handler

"""Find the route of a request, check who sent it, and pass it to the route's handler."""

import itertools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.net import current_request
from dragoman.net.errors import ClientDisconnected, RequestRejected, describe_fault
from dragoman.net.headers import asks_for_websocket
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink, SinkPhase
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.request_record import find_client_request_id
from dragoman.proxy.serve import Services, serve
from dragoman.proxy.steps.parked_runs import ParkedRuns
from dragoman.server.api.table import AdminApi
from dragoman.server.error_replies import ErrorReplies
from dragoman.server.model_requests import ModelRequests
from dragoman.server.public_pages import PublicPages
from dragoman.server.rejections import AuthBackoff, HostCheck, find_keys, key_failure, transport_failure
from dragoman.server.responses import NO_SOCKET, ReplayedResponses, ResponsesApi, refuse_state
from dragoman.server.responses import PATH as SOCKET_PATH
from dragoman.server.routes import (
    AccessRole,
    ArrivedRequest,
    ForwardedSender,
    HttpRoute,
    RoutedRequest,
    RouteTable,
    check_role,
    plain_path,
)
from dragoman.server.unknown_models import UnknownModelDelay
from dragoman.tenancy.keys import KeyId, Keyring, digest_presented
from dragoman.translate.framing.redaction import redact_path
from dragoman.translate.hub.failure import Failure, Kind, RequestError

if TYPE_CHECKING:
    from dragoman.proxy.capture.lookups import Lookups
    from dragoman.server.console.site import Console

log = logging.getLogger(__name__)

NO_KEY = KeyId("")
_PUBLIC, _SESSION = AccessRole.PUBLIC, AccessRole.SESSION  # what needs no key


class ServedApis(Struct, frozen=True):
    """What is served beside model requests."""

    scrape: Callable[[], Awaitable[bytes]]  # the metrics
    admin: AdminApi | None = None
    responses: ResponsesApi | ReplayedResponses | None = None


class RequestHandler:
    """Handles every request to the gateway."""

    def __init__(self, gateway: Gateway, keyring: Keyring, host_check: HostCheck, apis: ServedApis) -> None:
        self._gateway = gateway
        self._keyring = keyring
        self._admin_api = apis.admin
        self.responses = apis.responses
        self.parked_runs = ParkedRuns(lambda: gateway.runtime.config.responses)
        self.services = self._make_services()
        self.public_pages = PublicPages(apis.scrape)
        self.model_requests = ModelRequests(self.services, keyring.policies)
        self._error_replies = ErrorReplies(gateway)
        self.host_check = host_check
        self.auth_backoff = AuthBackoff()
        self.unknown_models = UnknownModelDelay()
        # Request ids are unique without asking the system for chance each time: drawn once, then counted.
        self._drawn = secrets.token_hex(8)
        self._counted = itertools.count(1)
        self.make_request_id: Callable[[], str] = self._count_request
        self.now: Callable[[], float] = time.time
        self.console: Console | None = None
        self.routes = RouteTable(self._table())

    @property
    def under_way(self) -> int:
        """How many model requests are being answered."""
        return len(self._gateway.running)

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
        self.public_pages.has_console = console is not None
        self.routes = RouteTable(self._table())

    def start_background(self) -> None:
        """Run queued responses from now on, if there are any."""
        if isinstance(self.responses, ResponsesApi):
            self.responses.background.start(self.services, self._hold_back_of, self.find_room)

    def find_room(self) -> int:
        """Return how many more requests may be answered at the same time; negative after the limit was lowered."""
        return self._gateway.runtime.config.server.max_requests - self.under_way

    def _table(self) -> Iterator[HttpRoute]:
        yield from self.public_pages.routes()
        yield from self.model_requests.routes()
        yield from () if self._admin_api is None else self._admin_api.routes(lambda: self.routes.routes)
        yield from () if self.console is None else self.console.routes()
        if self.responses is not None:
            yield self.model_requests.compacting_route(f"{SOCKET_PATH}/compact", self.responses.protocol)
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
        found = self.routes.find(request.method, path)
        arrived = ArrivedRequest(request, sink, path, request_id, found)
        try:
            if found is None or found.route.story is not serve:  # it decides itself when
                sink.allow_leaving()
            await (self._dispatch(arrived) if sender is None else self._dispatch_forwarded(arrived, sender))
        except RequestError as refused:
            self._gateway.refused += 1
            if not refused.observed:
                log.info("%s refused: %s", redact_path(path), refused.failure.kind.value)
            sink.allow_leaving()
            await self.unknown_models.hold_back(refused, request, self._key)
            self._error_replies.refuse(arrived, refused)
        except ClientDisconnected:
            raise
        except RequestRejected as rejected:
            self._error_replies.refuse(arrived, RequestError(transport_failure(rejected)))
        except Exception as bug:
            log.error("%s failed: %s", redact_path(path), describe_fault(bug))
            if sink.phase >= SinkPhase.SENT:
                sink.abort()
                return
            message = f"The gateway failed on this request. See the gateway's log for {request_id}."
            self._error_replies.refuse(arrived, RequestError(Failure(Kind.BUG, message)))
        finally:
            if sink.listener is not None:
                sink.listener.on_end()

    def _dispatch(self, arrived: ArrivedRequest) -> Awaitable[None]:
        """Return what handles a request. Raises RequestError if its key may not do this."""
        request, found = arrived.http, arrived.found
        host_error = self.host_check.find_error(request.headers)
        if host_error is not None:
            return self._error_replies.respond_with_status(arrived, *host_error)
        if request.method == "GET" and arrived.path != SOCKET_PATH and asks_for_websocket(request.headers):
            return self._error_replies.respond_with_status(arrived, 426, NO_SOCKET)
        if found is not None and (found.route.role is _PUBLIC or found.route.role is _SESSION):
            routed = RoutedRequest(request, arrived.sink, arrived.path, arrived.request_id, NO_KEY, found.rest)
            return found.route.handler(routed)
        key = self._key(request)
        return self._dispatch_without_key(arrived) if key is None else self._dispatch_with_key(arrived, key)

    def _dispatch_with_key(
        self, arrived: ArrivedRequest, key: KeyId, *, via_console: bool = False, is_forwarded: bool = False
    ) -> Awaitable[None]:
        found = arrived.found
        if found is None:
            return self._error_replies.refuse_path(arrived, self.routes.methods(arrived.path))
        access = self._keyring.access(key)
        check_role(found.route, access)
        routed = RoutedRequest(
            arrived.http,
            arrived.sink,
            arrived.path,
            arrived.request_id,
            key,
            found.rest,
            access,
            via_console=via_console,
            is_forwarded=is_forwarded,
            tenant=self._keyring.tenant(key),
            received_at=self.now(),
        )
        return found.route.handler(routed)

    async def _dispatch_without_key(self, arrived: ArrivedRequest) -> None:
        """Handle a request of a browser that is signed in to the console, or with a key that another process has made.

        Raises RequestError for any other.
        """
        request = arrived.http
        for digest in request.key_digests:
            known = await self._keyring.look_up(digest)
            if known is not None:
                request.mark_authenticated(known)
                return await self._dispatch_with_key(arrived, known)
        key = None if self.console is None else await self.console.find_key(request)
        if key is not None:
            await self._dispatch_with_key(arrived, key, via_console=True)
            return
        arrived.sink.allow_leaving()
        await self.auth_backoff.reject(request.address, arrived.path, had_key=bool(find_keys(request)))
        raise RequestError(key_failure(request), observed=True)  # by the backoff, which logs many in one line

    async def _dispatch_forwarded(self, arrived: ArrivedRequest, sender: ForwardedSender) -> None:
        if not self._keyring.is_valid(sender.key):  # it may be so new that this worker does not know it yet
            await self._keyring.refresh()
        if arrived.found is None or not self._keyring.is_valid(sender.key):
            raise RequestError(key_failure(arrived.http))
        await self._dispatch_with_key(arrived, sender.key, via_console=sender.via_console, is_forwarded=True)

    def _key(self, request: HttpRequest) -> KeyId | None:
        """Return the id of the valid key that the request carries; None if it carries none."""
        digests = request.key_digests
        if not digests:
            digests += digest_presented(find_keys(request))
        for digest in digests:
            key = self._keyring.find_valid(digest)
            if key is not None:
                request.mark_authenticated(key)
                return key
        return None

    async def _hold_back_of(self, refused: RequestError, request: RoutedRequest) -> None:
        """Hold back the refusal of a request that did not come by itself over HTTP."""
        await self.unknown_models.hold_back(refused, request.http, lambda _: request.key)

    def _count_request(self) -> str:
        return f"req_{self._drawn}{next(self._counted):08x}"


def replay_site(gateway: Gateway, keyring: Keyring, lookups: "Lookups", request_id: str) -> RequestHandler:
    """Return the handler of a replayed request, which has this id: only clients on this machine, and no metrics."""

    async def scrape() -> bytes:
        return b""

    apis = ServedApis(scrape, responses=ReplayedResponses(lookups))
    handler = RequestHandler(gateway, keyring, HostCheck("127.0.0.1", ()), apis)
    handler.make_request_id, handler.now = lambda: request_id, gateway.now
    return handler

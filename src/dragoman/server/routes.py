"""Routes and the requests to them.

The route table has method, path, role, handler and, of a path that asks a model, its story; a new path is one line and
one function.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.net.headers import JSON
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink
from dragoman.proxy.call import Call, Compacts
from dragoman.proxy.request_record import RequestRecord
from dragoman.proxy.response_headers import request_id_headers
from dragoman.proxy.runtime import Runtime
from dragoman.proxy.serve import Story
from dragoman.tenancy.keys import CLIENT, Access, KeyId, KeyRole, Scope
from dragoman.tenancy.policies import UNLIMITED
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.ports import Client, GetHeader, Protocol

if TYPE_CHECKING:
    from dragoman.server.api.wire import DescribedHandler

_SLASHES = re.compile("/{2,}")
CONSOLE_CLIENT = "console"  # the name of the client of requests that the console sends
_OWNER, _CLIENT = KeyRole.OWNER, KeyRole.CLIENT  # looked up once: on Python 3.11, each look-up of a member is slow
BELOW = "/*"  # at the end of a path: everything below it
MODEL = "{model}"  # within a path: any text, slashes and colons included
NAMED_PART = re.compile(r"\{\w+\}")  # within a path, such as {id}: any text without a slash


class AccessRole(Enum):
    PUBLIC = "public"  # needs no key
    SESSION = "session"  # a browser that is signed in to the console or signs in, which the handler checks
    CLIENT = "client"  # the owner and client keys
    OWN = "own"  # any key; a client key sees only what belongs to it, an admin token needs the scope
    ADMIN = "admin"  # the owner, and admin tokens that have the scope; where there is none, all of them


_ADMIN = AccessRole.ADMIN


class Cost(Enum):
    """Whether a client's POST may cost its owner something."""

    COSTS = "costs"  # its story passes the seat of limits
    FREE = "free"


class ForwardedSender(Struct, frozen=True):
    """Who sent a request that another worker of the gateway has checked and passed on."""

    key: KeyId
    via_console: bool
    request_id: str


class RoutedRequest(Struct, frozen=True):
    """One request to one route."""

    http: HttpRequest
    sink: ReplySink
    path: str  # plain
    request_id: str
    key: KeyId  # empty where the route is public
    rest: str = ""  # what `/*` at the end of the route's path, or the named parts in it, stand for
    access: Access = CLIENT
    via_console: bool = False  # sent by a browser that is signed in to the console
    is_forwarded: bool = False  # by another worker, which has checked it
    tenant: str = ""  # whose state it may read and change: that of its key
    received_at: float = 0.0  # seconds since the epoch

    @property
    def sees_all(self) -> bool:
        """Whether the caller may see what belongs to other keys; a route's scope has been checked already."""
        return self.access.role is not KeyRole.CLIENT


Handler = Callable[[RoutedRequest], Awaitable[None]]


class HttpRoute(Struct, frozen=True):
    method: str  # GET answers HEAD too
    path: str
    role: AccessRole
    handler: Handler
    refuses: bool = False  # it only says why there is nothing, so that no other request is advised to go there
    scope: Scope | None = None  # of an admin token that may use it
    story: Story | None = None  # that its handler begins; None: it calls no model
    cost: Cost | None = None  # of a client's POST
    described: "Callable[[], DescribedHandler] | None" = None  # what a path of the admin API takes and answers


def respond_json(request: RoutedRequest, body: bytes, status: int = 200) -> None:
    request.sink.respond(status, [JSON, *request_id_headers(request.request_id)], body)


def make_not_found(request: RoutedRequest) -> RequestError:
    http = request.http
    return RequestError(Failure(Kind.NOT_FOUND, f"There is nothing at {http.method} {http.path}."))


def fits_pattern(path: str, pattern: str) -> bool:
    """Return whether a path fits a pattern that holds `{model}`."""
    before, _, after = pattern.partition(MODEL)
    return len(path) > len(before) + len(after) and path.startswith(before) and path.endswith(after)


def check_role(route: HttpRoute, access: Access) -> None:
    """Raise RequestError (403) if a key may not use a route."""
    if access.role is _OWNER or (access.role is _CLIENT and route.role is not _ADMIN):
        return
    if access.role is _CLIENT:
        message = "This is a client key, for model requests and its own usage. Use the owner's key or an admin token."
        raise RequestError(Failure(Kind.FORBIDDEN, message, code="admin_required"))
    if route.role is AccessRole.CLIENT:
        message = "This is an admin token, and model requests need a client key. Run: dragoman keys create"
        raise RequestError(Failure(Kind.FORBIDDEN, message, code="client_key_required"))
    if route.scope is not None and not access.may(route.scope):
        message = f"This admin token does not have the scope {route.scope}."
        raise RequestError(Failure(Kind.FORBIDDEN, message, code="scope_required"))


class RouteMatch(Struct, frozen=True):
    route: HttpRoute
    rest: str = ""


class ArrivedRequest(Struct, frozen=True):
    """A request as it arrived: nothing says yet whether its sender may do this."""

    http: HttpRequest
    sink: ReplySink
    path: str  # plain
    request_id: str
    found: RouteMatch | None


class RouteTable:
    """Find the route of a request: an exact path first, then one with a model in it, then the longest one above it."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, HttpRoute]] = {}
        self._matches: dict[tuple[str, str], RouteMatch] = {}  # of exact paths, by method and path
        self._below: dict[str, dict[str, HttpRoute]] = {}
        self._patterns = [route for route in self.routes if MODEL in route.path]
        self._with_parts: list[tuple[re.Pattern[str], HttpRoute]] = []
        for route in self.routes:
            if MODEL in route.path:
                continue
            if NAMED_PART.search(route.path):
                self._with_parts.append((_compile_parts(route.path), route))
                continue
            table, path = (self._below, route.path[:-1]) if route.path.endswith(BELOW) else (self._exact, route.path)
            table.setdefault(path, {})[route.method] = route
            if table is self._exact:
                self._matches[route.method, path] = RouteMatch(route)
        self._prefixes = sorted(self._below, key=len, reverse=True)

    def find(self, method: str, path: str) -> RouteMatch | None:
        """Return the route for a method and a path; None if there is none."""
        method = "GET" if method == "HEAD" else method
        exact = self._matches.get((method, path))
        if exact is not None:
            return exact
        for route in self._patterns:
            if route.method == method and fits_pattern(path, route.path):
                return RouteMatch(route)
        for route, rest in self._find_with_parts(path):
            if route.method == method:
                return RouteMatch(route, rest)
        for prefix in self._prefixes:
            if path.startswith(prefix) and method in self._below[prefix]:
                return RouteMatch(self._below[prefix][method], path[len(prefix) :])
        return None

    def methods(self, path: str) -> list[str]:
        """Return the methods that this path supports."""
        found = dict(self._exact.get(path, {}))
        found |= {route.method: route for route in self._patterns if fits_pattern(path, route.path)}
        found |= {route.method: route for route, _ in self._find_with_parts(path)}
        for prefix in self._prefixes:
            if path.startswith(prefix):
                found |= self._below[prefix]
        offered = [method for method, route in found.items() if not route.refuses]
        return [name for method in offered for name in (("GET", "HEAD") if method == "GET" else (method,))]

    def _find_with_parts(self, path: str) -> Iterator[tuple[HttpRoute, str]]:
        for pattern, route in self._with_parts:
            found = pattern.fullmatch(path)
            if found is not None:
                yield route, "/".join(found.groups())


def _compile_parts(path: str) -> re.Pattern[str]:
    """Return the expression of a path with named parts, with a group for each."""
    return re.compile("([^/]+)".join(map(re.escape, NAMED_PART.split(path))), re.DOTALL)


@lru_cache(maxsize=256)
def plain_path(path: str) -> str:
    """Return a path without `/v1` (also repeated), repeated slashes and a trailing slash."""
    if "//" in path:
        path = _SLASHES.sub("/", path)
    while path == "/v1" or path.startswith("/v1/"):
        path = path[3:]
    return path.rstrip("/") or "/"


def client_at(method: str, path: str, protocols: Mapping[str, Protocol], header: GetHeader) -> Client:
    """Return the protocol in which a request to this plain path expects its errors.

    It is the one that serves the path or one above it, else the one that the headers announce, else the first.
    """
    clients = [protocol.client for protocol in protocols.values() if protocol.client is not None]
    serving = (client for client in clients if _serves(client, method, path))
    announced = (client for client in clients if client.matches_headers(header))
    return next(serving, None) or next(announced, None) or clients[0]


def _serves(client: Client, method: str, path: str) -> bool:
    """Return whether a plain path is one of the protocol's own, or below one."""
    fixed = tuple(pattern for pattern in client.paths if MODEL not in pattern)
    if path.startswith((*fixed, *client.prefixes)):
        return True
    patterns = [pattern for pattern in client.paths if MODEL in pattern]
    if method == "POST":  # only this protocol's clients post to a model, whatever verb they write after it
        return path.startswith(tuple(pattern.partition(MODEL)[0] for pattern in patterns))
    return any(fits_pattern(path, pattern) for pattern in patterns)


async def read_short_body(request: HttpRequest, limit: int, timeout_s: float) -> bytes:
    """Return a body that is never long. Raises RequestError once it is known to be longer, or if it takes too long."""
    too_large = RequestError(Failure(Kind.TOO_LARGE, f"The body has more than {limit} bytes."))
    if int(request.headers.get(b"content-length") or b"0") > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while piece := await request.next_piece():
                body += piece
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        message = f"The body did not arrive within {timeout_s:g} s."
        raise RequestError(Failure(Kind.REQUEST_TIMEOUT, message)) from None
    return bytes(body)


def make_call(runtime: Runtime, name: str, request: RoutedRequest, compacts: Compacts | None = None) -> Call:
    """Return the call that a request to the protocol of this name makes; its body is not read yet."""
    call = Call(runtime.protocols[name], request.http, request, make_record(name, request), compacts)
    if runtime.policies is not None:
        policy = runtime.policies.find(request.key)
        if policy is not UNLIMITED:
            call.apply_policy(policy)
    return call


def make_record(name: str, request: RoutedRequest) -> RequestRecord:
    """Return the record of a request to the protocol, or the path, of this name."""
    http = request.http
    record = RequestRecord(request.request_id, name, http.headers, request.key, request.tenant, request.received_at)
    if request.via_console:
        record.client = CONSOLE_CLIENT
    return record

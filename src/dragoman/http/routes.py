"""The route table: which method and path, who may ask, and what answers. A new path is one line and one function."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum

from msgspec import Struct

from dragoman.accounts.keys import KeyId
from dragoman.hub.ports import Client, GetHeader, Protocol
from dragoman.net.exchange import Exchange

_SLASHES = re.compile("/{2,}")
BELOW = "/*"  # at the end of a path: everything below it


class Role(Enum):
    PUBLIC = "public"  # anybody
    CLIENT = "client"  # any valid client key


class RoutedRequest(Struct, frozen=True):
    """One request to one route."""

    exchange: Exchange
    path: str  # plain
    request_id: str
    key: KeyId  # empty where the route is public
    rest: str = ""  # of a path that ends with `/*`


Handler = Callable[[RoutedRequest], Awaitable[None]]


class Route(Struct, frozen=True):
    method: str  # GET answers HEAD too
    path: str
    role: Role
    handler: Handler
    refuses: bool = False  # it only says why there is nothing, so that no other request is advised to go there


class RouteMatch(Struct, frozen=True):
    route: Route
    rest: str = ""


class RouteTable:
    """Finds the route of a request: an exact path first, then the longest one that the path is below."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._below: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            table, path = (self._below, route.path[:-1]) if route.path.endswith(BELOW) else (self._exact, route.path)
            table.setdefault(path, {})[route.method] = route
        self._prefixes = sorted(self._below, key=len, reverse=True)

    def find(self, method: str, path: str) -> RouteMatch | None:
        """Return the route that answers; None if there is none for the path, or none for the method."""
        method = "GET" if method == "HEAD" else method
        exact = self._exact.get(path, {}).get(method)
        if exact is not None:
            return RouteMatch(exact)
        for prefix in self._prefixes:
            if path.startswith(prefix) and method in self._below[prefix]:
                return RouteMatch(self._below[prefix][method], path[len(prefix) :])
        return None

    def methods(self, path: str) -> list[str]:
        """Return the methods that something answers at this path."""
        found = dict(self._exact.get(path, {}))
        for prefix in self._prefixes:
            if path.startswith(prefix):
                found |= self._below[prefix]
        offered = [method for method, route in found.items() if not route.refuses]
        return [name for method in offered for name in (("GET", "HEAD") if method == "GET" else (method,))]


def plain_path(path: str) -> str:
    """Return a path without its optional, perhaps doubled, version, doubled slashes and a trailing slash."""
    if "//" in path:
        path = _SLASHES.sub("/", path)
    while path == "/v1" or path.startswith("/v1/"):
        path = path[3:]
    return path.rstrip("/") or "/"


def client_at(path: str, protocols: Mapping[str, Protocol], header: GetHeader) -> Client:
    """Return the protocol in which a request to this plain path expects its errors.

    It is the one that serves the path or one above it, else the one that the headers announce, else the first.
    """
    clients = [protocol.client for protocol in protocols.values() if protocol.client is not None]
    serving = (client for client in clients if path.startswith(client.paths))
    announced = (client for client in clients if client.is_announced(header))
    return next(serving, None) or next(announced, None) or clients[0]

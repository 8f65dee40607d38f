"""The paths that need no key: whether the gateway runs and is ready, its version and its metrics."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from dragoman import __version__
from dragoman.operate.metrics.readings import CONTENT_TYPE
from dragoman.proxy.response_headers import request_id_headers
from dragoman.server.routes import AccessRole, HttpRoute, RoutedRequest, respond_json


class PublicPages:
    """Answers with the state of the gateway; `scrape` returns its metrics."""

    def __init__(self, scrape: Callable[[], Awaitable[bytes]]) -> None:
        self._scrape = scrape
        self._started_at = time.monotonic()
        self.is_ready = True
        self.has_console = False  # browsers are sent there
        self.find_problem: Callable[[], str] = str  # why nothing must be served here; empty: nothing is wrong
        self.find_shared_state: Callable[[], Mapping[str, bool]] = dict  # whether each part of it answers

    def routes(self) -> Iterator[HttpRoute]:
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

    async def _root(self, request: RoutedRequest) -> None:
        http = request.http
        is_browser = http.method == "GET" and b"text/html" in (http.headers.get(b"accept") or b"")
        if self.has_console and is_browser:
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
        degraded = [part for part, answers in self.find_shared_state().items() if not answers]
        if not self.is_ready:
            respond_json(request, msgspec.json.encode({"status": "draining"}), 503)
        elif problem := self.find_problem():
            respond_json(request, msgspec.json.encode({"status": "unready", "reason": problem}), 503)
        elif degraded:
            respond_json(request, msgspec.json.encode({"status": "degraded", "degraded": degraded}))
        else:
            respond_json(request, msgspec.json.encode({"status": "ready"}))

    async def _metrics(self, request: RoutedRequest) -> None:
        head = [(b"content-type", CONTENT_TYPE), *request_id_headers(request.request_id)]
        request.sink.respond(200, head, await self._scrape())

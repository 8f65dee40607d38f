"""No forged host and no spelling of a path gets past the key: every route, as the gateway's own table has it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import raw_http
from dragoman.server.rejections import HostCheck
from dragoman.server.routes import AccessRole, HttpRoute
from gateway import KEY, Running, running
from raw_http import Answered
from server.api.rig import ECHO

# What may be read without a key. A route that is added to this list is open to all who reach the gateway.
OPEN = {"/", "/health", "/healthz", "/ready", "/readyz", "/metrics", "/api/hello", "/console", "/console/*"}
# A browser that signs in, or has: without a session these answer 403.
FOR_BROWSERS = ("/console/", "/api/v1/live")
REFUSED = (400, 401, 403, 421, 426)
HEALTHY = b'{"status":"healthy"'

TARGETS = [
    "{path}",
    "/{path}",
    "{path}/",
    "{path}//",
    "/v1{path}",
    "/v1/v1//{path}",
    "/.{path}",
    "/./{path}",
    "{path}/.",
    "{path}/..",
    "{path}/../health",
    "/health/..{path}",
    "/health/../..{path}",
    "/health/%2e%2e{path}",
    "/health%2f..{path}",
    "/health%2F%2e%2E%2F{path}",
    "/health/..;{path}",
    "/health;{path}",
    "/health%00{path}",
    "/health%0d%0a{path}",
    "/health\\..{path}",
    "/health%5c..%5c{path}",
    "/health?{path}",
    "/health%3f{path}",
    "/console/..{path}",
    "/console/%2e%2e{path}",
    "/metrics/..{path}",
    "{encoded}",
    "/{encoded}",
    "{path}%00",
    "{path}%20",
    "{path}?path=/health",
    "{path};jsessionid=1",
    "{path}#/health",
    "http://127.0.0.1{path}",
    "HTTP://127.0.0.1/{path}",
    "http://127.0.0.1/health/..{path}",
    "http://127.0.0.1:1{path}",
    "http://evil.example{path}",
    "http://user@127.0.0.1{path}",
    "https://127.0.0.1/health?{path}",
]
HEADERS = [
    ("host: evil.example",),
    ("host: localhost",),
    ("host: 127.0.0.1:1",),
    ("host: [::1]",),
    ("host: 127.0.0.1", "host: evil.example"),
    ("host: 127.0.0.1", "x-forwarded-host: localhost", "x-forwarded-for: 127.0.0.1", "x-forwarded-proto: https"),
    ("host: 127.0.0.1", "x-original-url: /health", "x-rewrite-url: /health"),
    ("host: 127.0.0.1", "forwarded: for=127.0.0.1;host=localhost;proto=https", "x-real-ip: 127.0.0.1"),
    ("host: 127.0.0.1", "x-http-method-override: GET", "x-forwarded-prefix: /health"),
    ("host: 127.0.0.1", "authorization: Bearer", "x-api-key:", "x-goog-api-key: "),
    ("host: 127.0.0.1", "authorization: Basic ZmFrZTpmYWtl"),
    ("host: 127.0.0.1", "x-dragoman-worker-secret: fake", "x-dragoman-worker-key: environment"),
    ("host: 127.0.0.1", "origin: http://127.0.0.1", "sec-fetch-site: same-origin", "cookie: __Host-dragoman=fake"),
    ("host: 127.0.0.1", "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"),
]
PLAIN = ("host: 127.0.0.1",)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(ECHO, Path(tmp_path_factory.mktemp("hidden")), stored=["someone"]) as started:
        yield started


@pytest.fixture(params=["on loopback", "open to others"])
def is_checked(request: pytest.FixtureRequest, gateway: Running) -> Iterator[None]:
    """Check hosts as a gateway on loopback does, and as one does that others reach, which accepts any name."""
    before = gateway.app.site.host_check
    gateway.app.site.host_check = HostCheck("127.0.0.1" if request.param == "on loopback" else "0.0.0.0", ())
    yield
    gateway.app.site.host_check = before


def list_routes(gateway: Running) -> list[HttpRoute]:
    return [route for route in gateway.app.site.routes.routes if route.role is not AccessRole.PUBLIC]


def example(route: HttpRoute) -> str:
    """Return a path of a route, with the version that clients write."""
    path = route.path.replace("/*", "/x").replace("{model}", "x").replace("{id}", "x")
    return path if path.startswith(("/api/", "/console")) else f"/v1{path}"


def encode(path: str) -> str:
    """Return the path with the first letter of each segment, and every other slash, percent-encoded."""
    words = [f"%{ord(word[0]):02x}{word[1:]}" if word else "" for word in path.split("/")]
    return "/" + "%2F".join(words[1:])


def ask(gateway: Running, route: HttpRoute, target: str, fields: tuple[str, ...]) -> Answered:
    path = example(route)
    line = f"{route.method} {target.format(path=path, encoded=encode(path))} HTTP/1.1"
    lines = [line, *fields, "content-type: application/json", "content-length: 2", "", "{}"]
    return raw_http.ask(gateway.port, "\r\n".join(lines).encode(), route.method)


def check_refused(gateway: Running, route: HttpRoute, target: str, fields: tuple[str, ...]) -> None:
    answer = ask(gateway, route, target, fields)
    is_open = answer.status == 200 and (
        answer.body.startswith(HEALTHY) or b"<!doctype html>" in answer.body[:20].lower()
    )
    assert answer.status in REFUSED or is_open, (route.method, route.path, target, fields, answer)


def test_what_is_open_is_listed(gateway: Running) -> None:
    routes = gateway.app.site.routes.routes
    assert {route.path for route in routes if route.role is AccessRole.PUBLIC} == OPEN
    for route in routes:
        assert route.role is not AccessRole.SESSION or route.path.startswith(FOR_BROWSERS), route.path


def test_every_other_route_needs_a_key_and_with_one_is_reached(gateway: Running) -> None:
    for route in list_routes(gateway):
        expected = 403 if route.role is AccessRole.SESSION else 401
        assert ask(gateway, route, "{path}", PLAIN).status == expected, route.path
        with_key = ask(gateway, route, "{path}", (*PLAIN, f"authorization: Bearer {KEY}")).status
        assert (with_key == 401) is False, route.path


@pytest.mark.usefixtures("is_checked")
def test_no_spelling_of_a_path_and_no_forged_header_skips_the_key(gateway: Running) -> None:
    """Each route in some of the ways, each way with some routes; `make test-rest` has the whole product."""
    for number, route in enumerate(list_routes(gateway)):
        for turn in range(3):
            check_refused(gateway, route, TARGETS[(3 * number + turn) % len(TARGETS)], PLAIN)
        check_refused(gateway, route, "{path}", HEADERS[number % len(HEADERS)])
    route = next(route for route in list_routes(gateway) if route.path == "/api/v1/keys")
    for target in TARGETS:
        check_refused(gateway, route, target, PLAIN)
    for fields in HEADERS:
        check_refused(gateway, route, "{path}", fields)


@pytest.mark.rest
@pytest.mark.usefixtures("is_checked")
def test_no_route_can_be_reached_in_any_of_these_ways(gateway: Running) -> None:
    for route in list_routes(gateway):
        for target in TARGETS:
            check_refused(gateway, route, target, PLAIN)
        for fields in HEADERS:
            check_refused(gateway, route, "{path}", fields)

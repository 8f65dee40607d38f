"""The route table: what answers a method and a path."""

from dragoman.server.routes import AccessRole, HttpRoute, RoutedRequest, RouteTable
from tables import each_row


async def answer(visit: RoutedRequest) -> None:
    raise AssertionError("these tests only look routes up")


def route(method: str, path: str, *, refuses: bool = False) -> HttpRoute:
    return HttpRoute(method, path, AccessRole.CLIENT, answer, refuses)


TABLE = RouteTable(
    [
        route("POST", "/responses"),
        route("GET", "/responses", refuses=True),
        route("GET", "/models"),
        route("GET", "/models/*"),
        route("GET", "/models/own/*"),
        route("DELETE", "/models/own/*"),
    ]
)


@each_row(
    ("method", "path", "found", "rest"),
    [
        ("POST", "/responses", "/responses", ""),
        ("HEAD", "/models", "/models", ""),
        ("GET", "/models/echo", "/models/*", "echo"),
        ("GET", "/models/kiro/auto", "/models/*", "kiro/auto"),
        ("GET", "/models/own/x", "/models/own/*", "x"),
    ],
)
def test_an_exact_path_is_found_first_then_the_longest_above_it(method: str, path: str, found: str, rest: str) -> None:
    match = TABLE.find(method, path)
    assert match is not None
    assert (match.route.path, match.rest) == (found, rest)


@each_row(("method", "path"), [("PUT", "/responses"), ("GET", "/nothing"), ("POST", "/models")])
def test_what_is_not_in_the_table_is_not_found(method: str, path: str) -> None:
    assert TABLE.find(method, path) is None


@each_row(
    ("path", "methods"),
    [
        ("/responses", ["POST"]),
        ("/models", ["GET", "HEAD"]),
        ("/models/own/x", ["GET", "HEAD", "DELETE"]),
        ("/nothing", []),
    ],
)
def test_the_methods_of_a_path_are_those_that_do_something(path: str, methods: list[str]) -> None:
    assert sorted(TABLE.methods(path)) == sorted(methods)


WITH_ID = RouteTable([route("GET", "/keys/{id}"), route("DELETE", "/keys/{id}"), route("POST", "/keys/{id}/rotate")])


@each_row(
    ("method", "path", "found", "rest"),
    [
        ("GET", "/keys/a", "/keys/{id}", "a"),
        ("DELETE", "/keys/rotate", "/keys/{id}", "rotate"),
        ("POST", "/keys/a/rotate", "/keys/{id}/rotate", "a"),
    ],
)
def test_an_id_within_a_path_is_passed_on(method: str, path: str, found: str, rest: str) -> None:
    match = WITH_ID.find(method, path)
    assert match is not None
    assert (match.route.path, match.rest) == (found, rest)


def test_an_id_has_no_slash_and_is_not_empty() -> None:
    assert [WITH_ID.find("GET", path) for path in ("/keys/", "/keys/a/b", "/keys")] == [None] * 3
    assert WITH_ID.find("POST", "/keys//rotate") is None
    assert sorted(WITH_ID.methods("/keys/a")) == ["DELETE", "GET", "HEAD"]
    assert WITH_ID.methods("/keys/a/rotate") == ["POST"]

"""Every route with every role: made from the route table, over real sockets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import asking
from console.browser import Browser
from dragoman.server.routes import AccessRole, HttpRoute
from dragoman.tenancy.keys import Scope
from gateway import KEY, Running, running
from server.api.rig import ECHO, make_token

DOCUMENT = "/api/v1/openapi.json"  # for every admin token
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("roles"))
    with running(ECHO, directory, stored=["someone"]) as started:
        yield started


def send(gateway: Running, route: HttpRoute, key: str | None) -> int:
    """Send a request with an empty object as its body, which changes nothing: no field is set."""
    path = route.path.replace("/*", "/x").replace("{model}", "x").replace("{id}", "x")
    return asking.send(gateway, route.method, path, key=key, body=None if route.method == "GET" else {}).status


def routes_for_keys(gateway: Running) -> list[HttpRoute]:
    """Without those for browsers, which tests/console covers."""
    return [route for route in gateway.app.site.routes.routes if route.role is not AccessRole.SESSION]


def admin_routes(gateway: Running) -> list[HttpRoute]:
    return [route for route in gateway.app.site.routes.routes if route.role in (AccessRole.ADMIN, AccessRole.OWN)]


def test_without_a_key_only_public_routes_answer(gateway: Running) -> None:
    for route in routes_for_keys(gateway):
        is_refused = send(gateway, route, None) == 401
        assert is_refused == (route.role is not AccessRole.PUBLIC), route.path


def test_the_owner_may_use_every_route(gateway: Running) -> None:
    for route in routes_for_keys(gateway):
        assert send(gateway, route, KEY) not in (401, 403, 500), route.path


def test_a_client_key_may_use_no_admin_route(gateway: Running) -> None:
    for route in routes_for_keys(gateway):
        is_refused = send(gateway, route, gateway.keys["someone"]) == 403
        assert is_refused == (route.role is AccessRole.ADMIN), (route.method, route.path)


def test_an_admin_token_may_use_what_its_scopes_allow_and_no_model(gateway: Running) -> None:
    for scope in Scope:
        token = make_token(gateway, scope)
        for route in routes_for_keys(gateway):
            is_allowed = route.role is AccessRole.PUBLIC or route.path == DOCUMENT or route.scope is scope
            assert (send(gateway, route, token) != 403) == is_allowed, (scope, route.method, route.path)


def test_a_session_may_do_what_its_key_may(gateway: Running) -> None:
    scopes = (Scope.REQUESTS_READ, Scope.KEYS_READ)
    token = make_token(gateway, *scopes)
    for key in (KEY, gateway.keys["someone"], token):
        browser = Browser(gateway)
        assert browser.sign_in(key).status == 200
        for route in admin_routes(gateway):
            path = route.path.replace("/*", "/x").replace("{id}", "x")
            may = key == KEY or (route.scope in (*scopes, None) if key == token else route.role is AccessRole.OWN)
            reply = browser.send(route.method, path, None if route.method == "GET" else {})
            assert (reply.status != 403) == may, (key, route.method, route.path)


def test_routes_for_browsers_need_a_session(gateway: Running) -> None:
    for route in gateway.app.site.routes.routes:
        if route.role is AccessRole.SESSION:
            for key in (None, KEY, gateway.keys["someone"]):
                assert send(gateway, route, key) == 403, (route.method, route.path)


def test_admin_routes_have_no_other_methods(gateway: Running) -> None:
    served = {(route.method, route.path) for route in admin_routes(gateway)}
    for path in {path for _, path in served}:
        for method in METHODS:
            if (method, path) not in served:
                example = path.replace("/*", "/x").replace("{id}", "x")
                found = asking.send(gateway, method, example, body=None if method == "GET" else {})
                assert found.status in (404, 405), (method, path)
                if found.status == 405:
                    assert method not in found.headers["allow"].split(", ")


def test_every_admin_route_names_its_scope_and_every_scope_is_used(gateway: Running) -> None:
    assert [route.path for route in admin_routes(gateway) if route.scope is None] == [DOCUMENT]
    assert {route.scope for route in admin_routes(gateway)} == {*Scope, None}

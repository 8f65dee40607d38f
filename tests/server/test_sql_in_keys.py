"""SQL in a key, wherever one can be presented, opens nothing and changes nothing, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import raw_http
from asking import send
from console.browser import Browser
from gateway import KEY, Running, running
from narrowing import expect
from server.api.rig import ECHO

SQL = [
    "' OR '1'='1",
    "' OR 1=1 --",
    '" OR ""="',
    "') OR ('1'='1",
    "x'; DROP TABLE keys; --",
    "x'; DELETE FROM dragoman.keys; --",
    "' UNION SELECT digest FROM keys --",
    "' || (SELECT digest FROM keys LIMIT 1) || '",
    "1); SELECT pg_sleep(30); --",
    "dgm_%",
    "dgm_" + "_" * 43,
    "$1",
    "?1",
    ":digest",
    "environment",
    "first'/*",
]
UPGRADE = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13")


@pytest.fixture
def gateway(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr("dragoman.server.rejections.INTERVAL_S", 0.0)  # wrong keys are not slowed down
    with running(ECHO, tmp_path, stored=["someone"], store_url=store_url) as started:
        yield started


def list_keys(gateway: Running) -> list[object]:
    return expect(list, send(gateway, "GET", "/api/v1/keys").json["keys"])


def present_everywhere(gateway: Running, number: int) -> Iterator[tuple[str, int]]:
    """Present another text in each place; over all numbers each text is presented in each place."""
    first, second, third, fourth = (SQL[(number + place) % len(SQL)] for place in range(4))
    headers = {"authorization": f"Bearer {first}", "x-api-key": second, "x-goog-api-key": third}
    query = f"?key={quote(fourth)}"
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/messages"), ("GET", "/api/v1/keys")):
        body: object = {} if method == "POST" else None
        yield path, send(gateway, method, path + query, body, key=None, headers=headers).status
    admin = {"authorization": f"Bearer dga_{first}"}
    yield "an admin token", send(gateway, "POST", "/api/v1/keys", {"name": "x"}, key=None, headers=admin).status
    socket = raw_http.get(gateway.port, f"/v1/responses{query}", *UPGRADE, f"authorization: Bearer {second}")
    yield "a WebSocket", socket.status
    browser = Browser(gateway)
    yield "signing in", browser.sign_in(key=first).status
    yield "a console link", browser.sign_in(link=first).status
    browser.cookie, browser.token = f"__Host-dragoman={quote(first)}", second
    yield "a session", browser.send("GET", "/api/v1/keys").status


def test_sql_in_a_key_is_a_wrong_key(gateway: Running) -> None:
    before = list_keys(gateway)
    assert len(before) == 1
    for number, text in enumerate(SQL):
        for place, status in present_everywhere(gateway, number):
            assert status == 401, (place, text)
    assert list_keys(gateway) == before
    assert send(gateway, "GET", "/v1/models", key=gateway.keys["someone"]).status == 200


def test_sql_in_the_name_or_id_of_a_key_or_session_finds_nothing(gateway: Running) -> None:
    browser = Browser(gateway)
    assert browser.sign_in(key=KEY).status == 200
    before = list_keys(gateway)
    for text in SQL:
        which = quote(text, safe="")
        for method, path in (
            ("GET", f"/api/v1/keys/{which}"),
            ("DELETE", f"/api/v1/keys/{which}"),
            ("POST", f"/api/v1/keys/{which}/rotate"),
            ("GET", f"/api/v1/captures/{which}"),
        ):
            status = send(gateway, method, path, None if method == "GET" else {}).status
            assert status in (400, 404), (method, text)
        assert browser.send("DELETE", f"/console/sessions/{which}").status == 404, text
        assert send(gateway, "GET", f"/v1/responses/{which}").status == 404, text
    assert list_keys(gateway) == before
    assert browser.send("GET", "/console/sessions").status == 200

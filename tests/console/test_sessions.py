"""Signing in to the console, and what a session opens: over sockets, with every header that a browser sends."""

import asyncio
import http.client
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.browser import Browser, error_code, sign_in
from console.traffic import ECHO
from dragoman.config.secret import Secret
from dragoman.store import open_store
from dragoman.tenancy.console_sessions import IDLE_S, LINK_S, TOUCH_S, ConsoleSessions, MemorySessions
from dragoman.tenancy.console_sessions import Browser as SignedIn
from dragoman.tenancy.keys import Grant, Keyring, KeyRole
from gateway import KEY, Running, running

API = "/api/v1/config"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("sessions"))
    with running(ECHO, directory, stored=["someone", "leaving", "watching"]) as started:
        yield started


@pytest.fixture
def browser(gateway: Running) -> Browser:
    return sign_in(gateway, KEY)


def test_a_key_signs_in_and_the_cookie_is_out_of_reach_of_scripts_and_other_sites(gateway: Running) -> None:
    reply = Browser(gateway).sign_in(KEY)
    name, *rules = reply.headers["set-cookie"].split("; ")
    assert re.match("__Host-dragoman-[0-9a-f]{12}=", name)
    assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/"} <= set(rules)
    assert reply.json["role"] == "owner"
    assert reply.headers["cache-control"] == "no-store"
    assert KEY.encode() not in reply.body


def test_cookie_and_header_together_open_the_admin_api(browser: Browser) -> None:
    assert browser.send("GET", API).status == 200
    assert browser.send("GET", "/console/session").json["role"] == "owner"


def test_a_request_that_is_not_the_pages_own_opens_nothing(browser: Browser) -> None:
    table: list[tuple[dict[str, str], int, str]] = [
        ({"x_dragoman_console": ""}, 401, "auth"),  # cookie without header
        ({"cookie": ""}, 401, "session_ended"),  # header without cookie
        ({"x_dragoman_console": "A" * 43}, 401, "session_ended"),
        ({"sec_fetch_site": "same-site"}, 403, "other_site"),  # another port of this host
        ({"sec_fetch_site": "cross-site"}, 403, "other_site"),
        ({"sec_fetch_site": "none"}, 403, "other_site"),
        ({"sec_fetch_site": ""}, 403, "other_site"),
        ({"origin": "http://127.0.0.1:1"}, 403, "other_site"),
        ({"origin": "null"}, 403, "forbidden"),
        ({"origin": "https://evil.example"}, 403, "forbidden"),
        ({"host": "evil.example"}, 421, "forbidden"),
        ({"host": "evil.example:8484"}, 421, "forbidden"),
    ]
    for changed, status, code in table:
        reply = browser.send("GET", API, **changed)
        assert (reply.status, error_code(reply)) == (status, code), changed
        assert "access-control-allow-origin" not in reply.headers, changed
        assert b"settings" not in reply.body, changed


def test_signing_in_is_refused(gateway: Running) -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    table: list[tuple[object, dict[str, str], int]] = [
        ({"key": KEY}, {"origin": ""}, 403),
        ({"key": KEY}, {"origin": "http://127.0.0.1:1"}, 403),
        ({"key": KEY}, {"sec_fetch_site": "cross-site"}, 403),
        ({"key": KEY}, {"content_type": "text/plain"}, 415),
        (b"key=" + KEY.encode(), form, 415),
        (b"{", {"content_type": "application/json"}, 400),
        ({"key": KEY, "more": 1}, {}, 400),
        ({"key": "", "link": ""}, {}, 400),
        ({"key": KEY, "link": "x"}, {}, 400),
        ({"key": "x" * 5000}, {}, 413),
        ({"key": "😀 <img>"}, {}, 401),
    ]
    for body, changed, status in table:
        reply = Browser(gateway).send("POST", "/console/session", body, **changed)
        assert reply.status == status, (body, changed)
        assert "set-cookie" not in reply.headers, (body, changed)
        assert reply.json["error"], (body, changed)


def cookie_name(gateway: Running) -> str:
    return sign_in(gateway, KEY).cookie.partition("=")[0]


@pytest.mark.parametrize("framing", [b"content-length: 30000000", b"transfer-encoding: chunked"])
def test_a_long_sign_in_is_refused_before_it_has_arrived(gateway: Running, framing: bytes) -> None:
    host = b"127.0.0.1:%d" % gateway.port
    head = b"POST /console/session HTTP/1.1\r\nhost: %b\r\norigin: http://%b\r\n" % (host, host)
    head += b"sec-fetch-site: same-origin\r\ncontent-type: application/json\r\n%b\r\n\r\n" % framing
    body = b"" if b"length" in framing else b"1388\r\n" + b"x" * 5000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as client:
        client.sendall(head + body)
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")  # although the rest was never sent


def test_two_gateways_on_one_host_do_not_sign_each_other_out(gateway: Running, tmp_path: Path) -> None:
    with running(ECHO, tmp_path) as other:
        first, second = sign_in(gateway, KEY), sign_in(other, KEY)
        assert first.cookie.partition("=")[0] != second.cookie.partition("=")[0]
        first.cookie = second.cookie = f"{first.cookie}; {second.cookie}"  # a browser sends both to every port
        assert (first.send("GET", API).status, second.send("GET", API).status) == (200, 200)
        again = Browser(other, first.cookie)
        assert again.sign_in(KEY).status == 200
        assert (first.send("GET", API).status, second.send("GET", API).status) == (200, 401)


def test_each_sign_in_makes_a_new_session_and_ends_the_one_before(browser: Browser) -> None:
    before = (browser.cookie, browser.token)
    assert browser.sign_in(KEY).status == 200
    assert browser.cookie != before[0]
    assert browser.send("GET", API, cookie=before[0], x_dragoman_console=before[1]).status == 401


def test_a_tab_is_signed_out_with_the_others(browser: Browser) -> None:
    other = Browser(browser.gateway, browser.cookie, browser.token)
    assert browser.send("DELETE", "/console/session").status == 204
    assert error_code(other.send("GET", API)) == "session_ended"


def test_sessions_are_listed_and_ended_by_the_owner(browser: Browser) -> None:
    other = Browser(browser.gateway)
    other.sign_in(browser.gateway.keys["someone"])
    listed = browser.send("GET", "/console/sessions").json["sessions"]
    [found] = [one for one in listed if one["key"] not in ("environment",) and not one["is_this"]][-1:]
    assert "digest" not in found
    assert other.send("DELETE", "/console/sessions/ses_0").status == 404
    assert browser.send("DELETE", f"/console/sessions/{found['id']}").status == 200
    assert error_code(other.send("GET", "/api/v1/requests")) == "session_ended"


def test_sign_ins_and_ended_sessions_are_in_the_audit_log(browser: Browser) -> None:
    other = Browser(browser.gateway)
    signed_in = other.sign_in(browser.gateway.keys["someone"]).json["session"]
    browser.send("DELETE", f"/console/sessions/{signed_in['id']}")
    rows = browser.send("GET", "/api/v1/audit?limit=2").json["audit"]
    found = [(row["action"], row["actor"], row["subject"], row["detail"]) for row in rows]
    detail = {"key": signed_in["key"]}
    assert found == [
        ("sessions.end", "environment", signed_in["id"], detail),
        ("sessions.begin", signed_in["key"], signed_in["id"], detail),
    ]


def test_a_client_key_sees_its_own_requests_only(gateway: Running) -> None:
    browser = Browser(gateway)
    assert browser.sign_in(gateway.keys["someone"]).json["role"] == "client"
    assert browser.send("GET", "/api/v1/requests").status == 200
    assert error_code(browser.send("GET", API)) == "admin_required"
    listed = browser.send("GET", "/console/sessions").json["sessions"]
    assert {one["key"] for one in listed} == {listed[0]["key"]}


def test_a_session_ends_within_a_second_of_the_revocation_of_its_key(gateway: Running) -> None:
    browser = Browser(gateway)
    browser.sign_in(gateway.keys["leaving"])
    assert browser.send("GET", "/api/v1/requests").status == 200
    asyncio.run_coroutine_threadsafe(gateway.app.keyring.revoke("leaving"), gateway.loop).result(30)
    assert error_code(browser.send("GET", "/api/v1/requests")) == "session_ended"


def test_a_feed_ends_when_its_key_is_revoked(gateway: Running) -> None:
    browser = Browser(gateway)
    browser.sign_in(gateway.keys["watching"])
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    headers = {"cookie": browser.cookie, "x-dragoman-console": browser.token, "sec-fetch-site": "same-origin"}
    connection.request("GET", "/api/v1/feed?watch=live", headers=headers)
    answer = connection.getresponse()
    assert answer.readline() == b"event: hello\n"
    asyncio.run_coroutine_threadsafe(gateway.app.keyring.revoke("watching"), gateway.loop).result(30)
    assert b"event: ended" in answer.read()


def test_a_link_signs_in_once(gateway: Running) -> None:
    token = gateway.make_console_link()
    assert Browser(gateway).sign_in(link=token).json["role"] == "owner"
    assert error_code(Browser(gateway).sign_in(link=token)) == "link_not_valid"


def test_a_link_is_no_session(gateway: Running) -> None:
    token = gateway.make_console_link()
    assert (
        Browser(gateway).send("GET", API, cookie=f"{cookie_name(gateway)}={token}", x_dragoman_console=token).status
        == 401
    )


def test_failed_sign_ins_are_slowed_down(tmp_path: Path) -> None:
    with running(ECHO, tmp_path) as gateway:
        browser = Browser(gateway)
        began = time.monotonic()
        for _ in range(16):
            assert error_code(browser.sign_in("wrong")) == "key_not_valid"
        assert time.monotonic() - began > 1.0  # from the eleventh on one in 0.2 s
        assert browser.sign_in(KEY).status == 200


def test_workers_that_share_a_store_share_sessions_and_links(store_url: str) -> None:
    async def scenario() -> None:
        now = [1_800_000_000.0]
        stores = [await open_store(store_url) for _ in range(2)]
        keyrings = [Keyring(store, None, lambda: now[0]) for store in stores]
        owner = await keyrings[0].create("owner", Grant(KeyRole.OWNER))
        await keyrings[1].refresh()
        first, second = (
            ConsoleSessions(store, keyring, lambda: now[0]) for store, keyring in zip(stores, keyrings, strict=True)
        )
        who = SignedIn("127.0.0.1", "test")
        made = await first.sign_in(owner.secret.reveal().encode(), who)
        assert made is not None
        assert await second.find(made.cookie, made.token) == made.row
        assert await second.find(made.token, made.cookie) is None
        link = await first.make_link()
        assert link is not None
        opened = await asyncio.gather(first.open_link(link, who), second.open_link(link, who))
        assert [one is None for one in opened].count(True) == 1  # a link signs in once, whichever worker is asked
        assert len(await second.list_valid()) == 2
        now[0] += TOUCH_S
        assert await first.find(made.cookie, made.token) is not None
        used = {row.id: row.used_at for row in await second.list_valid()}
        assert used[made.row.id] == int(now[0])
        assert await second.end(made.row.id)
        assert not await first.is_open(made.row)
        now[0] += IDLE_S
        assert await first.list_valid() == []
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_sessions_and_links_expire() -> None:
    async def scenario() -> None:
        now = [1_000_000.0]
        keyring = Keyring(None, Secret(KEY), lambda: now[0])
        sessions = ConsoleSessions(MemorySessions(), keyring, lambda: now[0])
        who = SignedIn("127.0.0.1", "test")
        link = await sessions.make_link()
        assert link is not None
        now[0] += LINK_S
        assert await sessions.open_link(link, who) is None
        made = await sessions.sign_in(KEY.encode(), who)
        assert made is not None
        for _ in range(14):
            now[0] += IDLE_S - 1
            found = await sessions.find(made.cookie, made.token)
            assert (found is None) == (now[0] >= made.row.expires_at)
        again = await sessions.sign_in(KEY.encode(), who)
        assert again is not None
        now[0] += IDLE_S
        assert await sessions.find(again.cookie, again.token) is None

    asyncio.run(scenario())

"""Sessions in a real browser: pages of other ports, hidden tabs, and keys that are revoked while a page is open."""

import asyncio
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from console.screen import HIDE, Screen, screen
from console.traffic import ECHO, ask
from gateway import KEY, Running, running

ATTACK = """async root => {
  const send = (path, options) =>
    fetch(root + path, { credentials: "include", ...options }).then(r => r.status, () => "refused");
  const forged = { "content-type": "application/json", "x-dragoman-console": "A".repeat(43) };
  return [
    await send("/api/v1/config"),
    await send("/api/v1/feed"),
    await send("/api/v1/config", { headers: forged }),
    await send("/console/session", { method: "POST", headers: forged, body: "{}" }),
    await send("/console/session", { method: "DELETE" }),
  ];
}"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(ECHO, Path(tmp_path_factory.mktemp("attacks")), stored=["someone", "leaving"]) as started:
        yield started


@contextmanager
def other_port(page: bytes) -> Iterator[str]:
    """Serve a page from another port of this host, to which the browser sends the same cookies."""
    with serve_page(page) as (port, cookies):
        yield f"http://127.0.0.1:{port}"
    assert any("__Host-dragoman-" in cookie for cookie in cookies)  # which is why a cookie alone opens nothing


@contextmanager
def other_site(page: bytes) -> Iterator[str]:
    """Serve a page from another host name."""
    with serve_page(page) as (port, _):
        yield f"http://localhost:{port}"


@contextmanager
def serve_page(page: bytes) -> Iterator[tuple[int, list[str]]]:
    """Serve a page at any path; yield the port, and the cookies as they come."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.append(self.headers.get("cookie") or "")
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            return

    cookies: list[str] = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, cookies
        server.shutdown()


def test_a_page_of_another_port_gets_the_cookie_and_opens_nothing(chromium: Browser, gateway: Running) -> None:
    form = f'<form method="post" action="{gateway.url}/console/session" enctype="text/plain"><input name="a"></form>'
    with (
        screen(chromium, gateway) as tab,
        other_port(f"<iframe src={gateway.url}/console></iframe>{form}".encode()) as root,
    ):
        answered: dict[str, list[int]] = {}
        attacker = tab.page.context.new_page()
        attacker.on("response", lambda reply: answered.setdefault(reply.url, []).append(reply.status))
        attacker.goto(root)
        assert attacker.evaluate(ATTACK, gateway.url) == ["refused"] * 5
        assert "refused to connect" in attacker.frames[1].evaluate("document.body.innerText")  # no page frames it
        with attacker.expect_navigation():
            attacker.evaluate("document.forms[0].submit()")
        statuses = {status for url, found in answered.items() if url.startswith(gateway.url) for status in found}
        assert statuses <= {400, 401, 403, 404, 415}
        attacker.close()
        tab.open("settings")  # the session is what it was
        expect(tab.page.get_by_role("table")).to_contain_text("server.port")


def test_a_tab_that_is_hidden_for_thirty_seconds_closes_its_feed(tab: Screen, gateway: Running) -> None:
    tab.page.clock.install()
    tab.open("live")
    closed: list[str] = []
    tab.page.on("requestfailed", lambda request: closed.append(request.url))
    light = tab.page.get_by_role("banner").get_by_role("status")
    expect(light).to_contain_text("Live")
    tab.page.evaluate(HIDE, True)
    tab.page.clock.run_for(29_000)
    ask(gateway, request_id="sign-of-life")  # by this clock, none has come for 29 s
    expect(tab.page.get_by_role("row").nth(1)).to_be_attached()
    expect(light).to_contain_text("Live")
    assert closed == []
    tab.page.clock.run_for(2_000)
    expect(light).to_contain_text("Paused")
    assert closed == [f"{gateway.url}/api/v1/feed?watch=live"]
    tab.page.evaluate(HIDE, False)
    expect(light).to_contain_text("Live")


def test_a_page_whose_key_is_revoked_asks_for_another(chromium: Browser, gateway: Running) -> None:
    with screen(chromium, gateway, key=gateway.keys["leaving"]) as tab:
        tab.allowed = re.compile("401")
        tab.open("live")
        expect(tab.page.get_by_role("banner").get_by_role("status")).to_contain_text("Live")
        revoking = gateway.app.keyring.revoke("leaving")
        asyncio.run_coroutine_threadsafe(revoking, gateway.loop).result(30)
        expect(tab.page.get_by_label("Client key")).to_be_visible()
        expect(tab.page.get_by_role("alert")).to_contain_text("Sign in again")
        assert KEY not in tab.page.content()


def test_a_deep_link_on_another_site_leads_to_the_sign_in_and_then_to_the_page(
    chromium: Browser, gateway: Running
) -> None:
    with (
        screen(chromium, gateway, None) as tab,
        other_site(f'<a href="{gateway.url}/console/settings?q=server.port">Look</a>'.encode()) as root,
    ):
        tab.page.goto(root)
        tab.requests.clear()
        tab.page.get_by_role("link", name="Look").click()
        tab.page.get_by_label("Client key").fill(KEY)
        tab.keep("deep-link")
        tab.page.get_by_role("button", name="Sign in").click()
        expect(tab.page.get_by_role("table")).to_contain_text("server.port")
        assert tab.page.url == f"{gateway.url}/console/settings?q=server.port"

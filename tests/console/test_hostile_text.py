"""Text that looks like markup: in models, keys, prompts, errors, headers and file names, on every page."""

import http.client
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from console.screen import screen
from console.traffic import make_capturing_config
from gateway import KEY, Running, provider_section, running

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
TEXTS = (
    MARKUP,
    "javascript:alert(3)",
    "\u202etxt.exe \u2066hidden\u2069 \u200bzero",
    "\x1b[31mred\x1b[0m \x07 \x9b1m",
    "=HYPERLINK(1)",
    "<b>" * 50,
)
UNSEEN = ("\u202e", "\u2066", "\u2069", "\u200b", "\x1b", "\x07", "\x9b")


@contextmanager
def hostile_upstream() -> Iterator[str]:
    """An upstream whose models, headers and errors look like markup."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {"data": [{"id": text, "object": "model", "name": MARKUP} for text in TEXTS]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(400, {"error": {"message": f"{MARKUP} {TEXTS[2]} {TEXTS[3]}", "type": MARKUP, "code": MARKUP}})

        def answer(self, status: int, body: object) -> None:
            data = msgspec.json.encode(body)
            self.send_response(status, "<b>")
            for name, value in (("content-type", "application/json"), ("x-odd", MARKUP), ("request-id", MARKUP)):
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = (
        Path(tmp_path_factory.mktemp("hostile")) / "<img src=x onerror=alert(5)>"
    )  # settings show where the file is
    directory.mkdir()
    with (
        hostile_upstream() as url,
        running(
            make_capturing_config(directory / "captures") + provider_section("chat", url, "evil"),
            directory,
            stored=[MARKUP, "=cmd()"],
        ) as started,
    ):
        started.settle()
        send(started, "hostile-error", {"model": "evil/x", "messages": [{"role": "user", "content": "x"}]})
        started.capture("hostile-error")
        for number, text in enumerate(TEXTS):
            send(started, f"hostile-{number}", {"model": "echo", "messages": [{"role": "user", "content": text}]})
            send(started, f"unknown-{number}", {"model": text, "messages": [{"role": "user", "content": "x"}]})
        long: dict[str, object] = {
            "model": "echo",
            "messages": [{"role": "user", "content": "W" * 1_000_000}],
            "x": "?",
        }
        send(started, "hostile-long", long, stream=False)  # with half a surrogate pair
        for number in range(len(TEXTS)):
            started.capture(f"hostile-{number}")
        started.capture("hostile-long")
        yield started


def send(gateway: Running, request_id: str, body: dict[str, object], stream: bool = True) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    headers = {"authorization": f"Bearer {gateway.keys[MARKUP]}", "x-request-id": request_id}
    headers |= {"user-agent": "<svg/onload=alert(4)>", "x-stainless-lang": MARKUP, "content-type": "application/json"}
    data = msgspec.json.encode(body | {"stream": stream}).replace(b'"x":"?"', b'"x":"\\ud800"')
    connection.request("POST", "/v1/chat/completions", data, headers)
    connection.getresponse().read()
    connection.close()


def test_text_of_others_is_never_markup_on_any_page(chromium: Browser, gateway: Running) -> None:
    with screen(chromium, gateway) as tab:
        tab.page.on("dialog", lambda dialog: tab.messages.append(f"dialog {dialog.message}"))
        pages = ["live", "requests", "usage?by=model", "usage?by=key", "usage?by=client", "keys", "models", "accounts"]
        pages += ["settings?edit=1", "doctor", "connect", "help", "inspect/hostile-error", "inspect/hostile-long"]
        pages += [f"inspect/hostile-{number}" for number in range(len(TEXTS))]
        for name in pages:
            tab.open(name)
            tab.page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")
            if name.startswith("inspect"):
                expect(tab.page.get_by_role("table", name="Timeline of the request")).to_contain_text("(end)")
            assert tab.page.locator("main img, main script, main b, main svg[onload]").count() == 0, name
            assert tab.page.locator("a[href^='javascript:']").count() == 0
            shown = tab.page.locator("body").inner_text()
            assert [sign for sign in UNSEEN if sign in shown] == [], name
            tab.check_width()
        tab.open("requests")
        expect(tab.page.get_by_role("row").filter(has_text=MARKUP).first).to_be_visible()
        tab.open("inspect/hostile-error")
        expect(tab.page.locator("main")).to_contain_text(f"Failure: {MARKUP}")
        tab.open("models")
        expect(tab.page.get_by_role("table", name="Models")).to_contain_text("javascript:alert(3)")
        tab.open("settings")
        expect(tab.page.locator("main")).to_contain_text("<img src=x onerror=alert(5)>/dragoman.toml")
        tab.open("inspect/hostile-2")
        expect(tab.page.locator("main")).to_contain_text("⟨U+202E⟩txt.exe")


def test_no_cell_of_an_export_starts_a_formula(chromium: Browser, gateway: Running) -> None:
    with screen(chromium, gateway) as tab:
        tab.open("requests")
        with tab.page.expect_download() as download:
            tab.page.get_by_role("button", name="CSV").click()
        cells = [cell for line in Path(download.value.path()).read_text().splitlines() for cell in line.split(",")]
        assert [cell for cell in cells if cell.lstrip('"')[:1] in "=+@" and cell.strip('"')] == []


def test_what_is_copied_has_no_terminal_escapes_and_no_key(chromium: Browser, gateway: Running) -> None:
    with screen(chromium, gateway) as tab:
        tab.open("inspect/hostile-3")
        tab.page.get_by_role("button", name="Copy as cURL").click()
        expect(tab.page.get_by_role("button", name="Copied")).to_be_visible()
        copied = tab.page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("curl ")
        assert "$DRAGOMAN_API_KEY" in copied
        assert [sign for sign in UNSEEN if sign in copied] == []
        assert gateway.keys[MARKUP] not in copied


def test_markup_cannot_be_made_at_all(chromium: Browser, gateway: Running) -> None:
    with screen(chromium, gateway) as tab:
        tab.open("live")
        made = "() => { try { document.body.innerHTML = '<i>x</i>'; return 'made'; } catch (e) { return e.name; } }"
        tab.allowed = re.compile("Trusted")
        assert tab.page.evaluate(made) == "TypeError"
        evaluated = "() => { try { return setTimeout('1', 0) ? 'made' : ''; } catch (e) { return e.name; } }"
        assert tab.page.evaluate(evaluated) != "made"
        assert KEY not in tab.page.content()

"""Text that looks like markup: in models, keys, prompts, errors, headers and file names, on every page."""

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import expect

import asking
from console.screen import Screen
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
        send(started, "hostile-error", "evil/x", "x")
        started.capture("hostile-error")
        for number, text in enumerate(TEXTS):
            send(started, f"hostile-{number}", "echo", text)
            send(started, f"unknown-{number}", text, "x")
        send_surrogate(started, "hostile-long")
        for number in range(len(TEXTS)):
            started.capture(f"hostile-{number}")
        started.capture("hostile-long")
        yield started


def send(gateway: Running, request_id: str, model: str, text: str, *, stream: bool = True) -> None:
    headers = {"x-request-id": request_id, "user-agent": "<svg/onload=alert(4)>", "x-stainless-lang": MARKUP}
    asking.ask(gateway, "chat", model, text, stream=stream, key=gateway.keys[MARKUP], headers=headers)


def send_surrogate(gateway: Running, request_id: str) -> None:
    """Send a long word and half a surrogate pair."""
    body = msgspec.json.encode(asking.make_body("chat", "echo", "W" * 1_000_000) | {"x": "?"})
    body = body.replace(b'"x":"?"', b'"x":"\\ud800"')
    headers = {"x-request-id": request_id}
    asking.send(gateway, "POST", asking.PATHS["chat"], body, key=gateway.keys[MARKUP], headers=headers)


FEW = ["requests", "usage?by=key", "keys", "models", "settings?edit=1", "inspect/hostile-error", "inspect/hostile-2"]
FEW += ["inspect/hostile-long"]
EVERY = ["live", "requests", "usage?by=model", "usage?by=key", "usage?by=client", "keys", "models", "accounts"]
EVERY += ["settings?edit=1", "doctor", "connect", "help", "inspect/hostile-error", "inspect/hostile-long"]
EVERY += [f"inspect/hostile-{number}" for number in range(len(TEXTS))]
SHOWN = {
    "requests": MARKUP,
    "inspect/hostile-error": f"Failure: {MARKUP}",
    "models": "javascript:alert(3)",
    "settings?edit=1": "<img src=x onerror=alert(5)>/dragoman.toml",
    "inspect/hostile-2": "⟨U+202E⟩txt.exe",
}


@pytest.mark.parametrize("pages", [FEW, pytest.param(EVERY, marks=pytest.mark.rest)], ids=["some", "all"])
def test_text_of_others_is_never_markup_on_any_page(tab: Screen, pages: list[str]) -> None:
    tab.page.on("dialog", lambda dialog: tab.messages.append(f"dialog {dialog.message}"))
    for name in pages:
        tab.open_whole(name)
        if name.startswith("inspect"):
            expect(tab.page.get_by_role("table", name="Timeline of the request")).to_contain_text("(end)")
        if name in SHOWN:
            expect(tab.page.locator("main")).to_contain_text(SHOWN[name])
        assert tab.page.locator("main img, main script, main b, main svg[onload]").count() == 0, name
        assert tab.page.locator("a[href^='javascript:']").count() == 0
        shown = tab.page.locator("body").inner_text()
        assert [sign for sign in UNSEEN if sign in shown] == [], name
        tab.check_width()


def test_no_cell_of_an_export_starts_a_formula(tab: Screen) -> None:
    tab.open("requests")
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="CSV").click()
    cells = [cell for line in Path(download.value.path()).read_text().splitlines() for cell in line.split(",")]
    assert [cell for cell in cells if cell.lstrip('"')[:1] in "=+@" and cell.strip('"')] == []


def test_what_is_copied_has_no_terminal_escapes_and_no_key(tab: Screen, gateway: Running) -> None:
    tab.open("inspect/hostile-3")
    tab.page.get_by_role("button", name="Copy as cURL").click()
    expect(tab.page.get_by_role("button", name="Copied")).to_be_visible()
    copied = tab.page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("curl ")
    assert "$DRAGOMAN_API_KEY" in copied
    assert [sign for sign in UNSEEN if sign in copied] == []
    assert gateway.keys[MARKUP] not in copied


def test_markup_cannot_be_made_at_all(tab: Screen) -> None:
    tab.open("live")
    made = "() => { try { document.body.innerHTML = '<i>x</i>'; return 'made'; } catch (e) { return e.name; } }"
    tab.allowed = re.compile("Trusted")
    assert tab.page.evaluate(made) == "TypeError"
    evaluated = "() => { try { return setTimeout('1', 0) ? 'made' : ''; } catch (e) { return e.name; } }"
    assert tab.page.evaluate(evaluated) != "made"
    assert KEY not in tab.page.content()

"""A tab of the console in a real browser: what it says on its console, where its requests go, what it shows."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, ViewportSize

from console.traffic import own_id
from gateway import KEY, Running

SCREENSHOTS = os.environ.get("DRAGOMAN_SCREENSHOTS")  # a directory: every state of every page is kept there
WIDTHS = (360, 900, 1600)
AXE = Path(__file__).parents[2] / "tools" / "console" / "node_modules" / "axe-core" / "axe.min.js"
UNNAMED = """() => [...document.querySelectorAll("input, select, textarea, button")]
  .filter(e => e.checkVisibility() && !(e.labels?.length || e.ariaLabel || e.textContent.trim() || e.title))
  .map(e => e.outerHTML)"""
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
SETTLED = "() => !document.querySelector('[aria-busy=true]')"


class Screen:
    """One tab that is signed in. At the end nothing may have been logged, and no request may have gone elsewhere."""

    def __init__(self, page: Page, gateway: Running) -> None:
        self.page = page
        self.gateway = gateway
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.allowed = re.compile("$^")  # messages that a test provokes
        page.on("console", self._on_message)
        page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        page.on("request", self._on_request)

    def _on_message(self, message: ConsoleMessage) -> None:
        if not self.allowed.search(message.text):
            self.messages.append(message.text)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.gateway.url}/", "blob:")):
            self.requests.append(request.url)

    def sign_in(self, key: str = KEY) -> None:
        """Sign in as a person does, with a client key."""
        self.page.goto(f"{self.gateway.url}/console")
        self.page.get_by_label("Client key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("navigation").wait_for()

    def follow_link(self, name: str = "") -> None:
        """Open a page with a link that signs in: one load instead of three."""
        self.page.goto(f"{self.find_address(name)}#t={self.gateway.make_console_link()}")
        self.page.get_by_role("navigation").wait_for()

    def find_address(self, name: str) -> str:
        """Return the address of a page; inspect/X is that of the request which its client calls X."""
        page, _, id = name.partition("/")
        return f"{self.gateway.url}/console/{f'{page}/{own_id(self.gateway, id)}' if page == 'inspect' else name}"

    def open(self, name: str) -> None:
        self.page.goto(self.find_address(name))
        self.page.locator("main h1").wait_for()

    def open_whole(self, name: str) -> None:
        """Open a page and wait until it has loaded what it shows."""
        self.open(name)
        self.page.wait_for_function(SETTLED)

    def keep(self, name: str) -> None:
        """Take screenshots at three widths, light and dark, if a directory for them is set."""
        if SCREENSHOTS is None:
            return
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                self.page.emulate_media(color_scheme=scheme)
                self.page.set_viewport_size({"width": width, "height": 900})
                self.page.screenshot(path=f"{SCREENSHOTS}/{name}-{width}-{scheme}.png")
        self.page.set_viewport_size({"width": 1280, "height": 800})

    def check_width(self) -> None:
        """Check that nothing is wider than the screen at 320 px, which is 1280 px enlarged to 400 %."""
        self.page.set_viewport_size({"width": 320, "height": 800})
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 320, f"the page is {wide} px wide at {self.page.url}"
        self.page.set_viewport_size({"width": 1280, "height": 800})

    def check_page(self, name: str) -> None:
        """One heading, landmarks, labelled controls, tables with headers, no overflow, and no findings of axe."""
        page = self.page
        assert page.locator("h1").count() == 1
        assert page.get_by_role("main").count() == 1
        assert page.get_by_role("navigation").count() == 1
        assert page.evaluate(UNNAMED) == [], name
        assert page.locator("table:not(:has(th[scope=col]))").count() == 0
        self.check_width()
        if AXE.exists():
            page.evaluate(AXE.read_text())
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in found] == [], name

    def check_log(self) -> None:
        """Check that nothing was logged, and no request went elsewhere."""
        assert self.messages == []
        assert self.requests == []


def open_context(chromium: Browser, zone: str | None = None) -> BrowserContext:
    permissions = ["clipboard-read", "clipboard-write"]
    size = ViewportSize(width=1280, height=800)
    context = chromium.new_context(viewport=size, permissions=permissions, timezone_id=zone)
    context.set_default_timeout(60_000)
    return context


@contextmanager
def screen(chromium: Browser, gateway: Running, name: str | None = "", key: str = KEY) -> Iterator[Screen]:
    """Open a page in a browser of its own, signed in with a key; None: without signing in or opening anything."""
    context = open_context(chromium)
    try:
        made = Screen(context.new_page(), gateway)
        if name is not None and key == KEY:
            made.follow_link(name)
        elif name is not None:
            made.sign_in(key)
        yield made
        made.check_log()
    finally:
        context.close()

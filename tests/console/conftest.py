"""A real Chromium for the tests of the console. Debian's package, driven by Playwright, which downloads nothing."""

import asyncio
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from console.screen import Screen, open_context
from gateway import Running

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 60_000
SESSION = "JSON.stringify({ ...sessionStorage })"
expect.set_options(timeout=PATIENCE_MS)  # a page may take long on a busy machine


@pytest.fixture(scope="session")
def started_chromium() -> Iterator[tuple[Browser, asyncio.AbstractEventLoop]]:
    """One browser for all tests of this process, with the event loop that Playwright suspends in this thread."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path is not None, "The tests of the console need Chromium. Run: make chromium (or: apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield browser, loop
        asyncio._set_running_loop(loop)
        browser.close()


@pytest.fixture
def chromium(started_chromium: tuple[Browser, asyncio.AbstractEventLoop]) -> Iterator[Browser]:
    """The browser; a test that has it cannot run an event loop, because Playwright's counts as running meanwhile."""
    browser, loop = started_chromium
    asyncio._set_running_loop(loop)
    yield browser
    asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def contexts() -> dict[Running, BrowserContext]:
    """The browser of the module's gateway, in which its tabs are signed in."""
    return {}


@pytest.fixture
def tab(chromium: Browser, gateway: Running, contexts: dict[Running, BrowserContext]) -> Iterator[Screen]:
    """A new tab of the module's gateway, signed in as its owner."""
    if gateway not in contexts:
        for earlier in contexts.values():
            earlier.close()
        contexts.clear()
        contexts[gateway] = open_context(chromium)
        first = contexts[gateway].new_page()
        Screen(first, gateway).follow_link("help")
        # Another tab would get the session from this one, which must not stay: it would watch what the tests do.
        fill = f"Object.assign(sessionStorage, {first.evaluate(SESSION)})"
        contexts[gateway].add_init_script(f"if (location.origin === {gateway.url!r}) {fill}")
        first.close()
    made = Screen(contexts[gateway].new_page(), gateway)
    yield made
    made.page.close()
    made.check_log()

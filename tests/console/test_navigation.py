"""Moving about the console: back to page, row and focus, typed text, wrong addresses, and who gets which page."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import asking
from console.screen import SETTLED, Screen, screen
from console.traffic import ECHO
from gateway import Running, running
from store.rows import row_at

STORED = 250
TYPED = f"{ECHO}# typed, and not written\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(ECHO, Path(tmp_path_factory.mktemp("navigation")), stored=["someone"]) as started:
        now_ms = int(time.time() * 1000)
        started.store_usage([row_at(now_ms - number * 1000, number) for number in range(STORED)])
        yield started


def find_place(page: Page) -> tuple[int, str]:
    """Return how far the page is scrolled, and the row that has the focus."""
    y = page.evaluate("scrollY")
    row = page.evaluate("document.activeElement.closest('tr')?.dataset.key || document.activeElement.tagName")
    return round(y), str(row)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("inspect/%E0%A4%A", "No request with this id is known"),
        ("inspect/%00", "No request with this id is known"),
        ("inspect/", "No request with this id is known"),
        ("inspect/" + "x" * 300, "No request with this id is known"),
        ("keys/%E0%A4%A", "someone"),
        ("requests?q=%E0%A4%A", "No request fits this filter"),
        ("%E0%A4%A", "There is no page %E0%A4%A"),
    ],
)
def test_an_address_that_is_wrong_is_explained(tab: Screen, address: str, text: str) -> None:
    tab.allowed = re.compile("400")
    tab.page.goto(f"{tab.gateway.url}/console/{address}")
    expect(tab.page.locator("main")).to_contain_text(text)
    tab.page.wait_for_function(SETTLED)


def test_a_page_of_a_stopped_gateway_says_that_it_does_not_answer(tab: Screen) -> None:
    tab.allowed = re.compile("ERR_FAILED")
    tab.open("help")
    tab.page.wait_for_function(SETTLED)
    tab.page.route("**/*", lambda route: route.abort())
    tab.page.get_by_role("link", name="Keys").click()
    expect(tab.page.locator("main .failed")).to_contain_text("The gateway does not answer. Is it running?")
    tab.keep("keys-stopped")
    tab.page.get_by_role("button", name="Try again").click()
    expect(tab.page.locator("main .failed")).to_contain_text("The gateway does not answer. Is it running?")
    tab.page.unroute("**/*")
    tab.page.get_by_role("button", name="Try again").click()
    expect(tab.page.get_by_role("table", name="Keys")).to_contain_text("someone")


def test_a_key_is_offered_the_pages_that_it_may_open(chromium: Browser, gateway: Running) -> None:
    fields = {"name": "reader", "role": "admin", "scopes": ["usage:read", "keys:read"]}
    token = str(asking.send(gateway, "POST", "/api/v1/keys", fields).json["secret"])
    for key, pages in (
        (gateway.keys["someone"], ["Live", "Requests", "Usage", "Connect"]),
        (token, ["Usage", "Keys"]),
    ):
        with screen(chromium, gateway, None) as tab:
            tab.sign_in(key)
            tab.page.wait_for_function(SETTLED)
            expect(tab.page.get_by_role("navigation").get_by_role("link")).to_have_text(pages)
            expect(tab.page.locator("main .forbidden")).to_have_count(0)
            tab.keep(f"offered-{len(pages)}")
            tab.page.keyboard.press("?")
            expect(tab.page.get_by_role("heading", name="Help")).to_be_visible()
            expect(tab.page.locator("dl.facts")).not_to_contain_text("g s")
            tab.page.keyboard.press("g")
            tab.page.keyboard.press("s")
            expect(tab.page.get_by_role("heading", name="Help")).to_be_visible()
            for link in tab.page.locator("main a[href^='/console/models']").all():
                expect(link).to_have_count(0)

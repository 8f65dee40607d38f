"""Moving about the console: back to page, row and focus, typed text, wrong addresses, and who gets which page."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, Route, expect

import asking
from console.screen import SETTLED, Screen, screen
from console.traffic import ECHO, ask
from gateway import KEY, Running, running
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


@pytest.mark.parametrize("how", ["back", "Escape", pytest.param("reload", marks=pytest.mark.rest)])
def test_back_leads_to_the_same_rows_and_the_same_place_among_them(tab: Screen, how: str) -> None:
    page = tab.page
    tab.open("requests?q=route:up/*")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(100)
    older = page.get_by_role("button", name="Older requests")
    older.press("Enter")
    expect(rows).to_have_count(200)
    expect(older).to_be_focused()
    rows.nth(150).focus()
    place = find_place(page)
    assert place[0] > 2000
    if how == "reload":
        page.reload()
    else:
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Inspector")).to_be_visible()
        expect(page.locator("main")).to_contain_text("up/claude-fake")
        if how == "back":
            page.go_back()
        else:
            page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("requests.q=route"))
    expect(rows).to_have_count(200)
    expect(rows.nth(150)).to_be_focused()
    assert find_place(page) == place
    older.press("Enter")
    expect(rows).to_have_count(250)
    expect(rows.last).to_be_focused()  # there is nothing older, and no such button


def test_a_search_shows_no_rows_of_an_earlier_one(tab: Screen) -> None:
    held: list[Route] = []
    tab.page.route(re.compile("requests[?]q=cost"), lambda route: held.append(route))
    tab.open("requests")
    rows = tab.page.locator("tbody tr")
    expect(rows).to_have_count(100)
    for text in ("cost>0", "request_id:req_7"):
        tab.page.get_by_label("Filter").fill(text)
        tab.page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    held[0].continue_()
    tab.page.wait_for_function(SETTLED)
    expect(rows).to_have_count(1)


def test_back_leads_to_the_same_live_row(tab: Screen, gateway: Running) -> None:
    for number in range(3):
        ask(gateway, f"Request {number}")
    tab.open("live")
    row = tab.page.locator("tbody tr").nth(1)
    row.focus()
    place = find_place(tab.page)
    row.press("Enter")
    expect(tab.page.get_by_role("heading", name="Inspector")).to_be_visible()
    tab.page.go_back()
    expect(row).to_be_focused()
    assert find_place(tab.page) == place


def test_escape_on_an_address_that_was_opened_directly_stays_in_the_console(tab: Screen, gateway: Running) -> None:
    tab.page.goto("about:blank")
    tab.page.goto(f"{gateway.url}/console/inspect/req_1")
    expect(tab.page.locator("main")).to_contain_text("up/claude-fake")
    tab.page.keyboard.press("Escape")
    expect(tab.page).to_have_url(f"{gateway.url}/console/requests")
    expect(tab.page.locator("tbody tr")).to_have_count(100)


@pytest.fixture
def settings(tab: Screen) -> Screen:
    """Settings with text that was typed and not written."""
    tab.open("help")
    tab.page.get_by_role("link", name="Settings").click()
    tab.page.get_by_text("Edit the file").click()
    tab.page.locator("textarea").fill(TYPED)
    return tab


def press_keys(page: Page, *keys: str) -> None:
    page.locator("main").focus()
    for key in keys:
        page.keyboard.press(key)


def check_typed(page: Page) -> None:
    expect(page.get_by_role("heading", name="Settings")).to_be_visible()
    expect(page.locator("textarea")).to_have_value(TYPED)


def test_leaving_with_unsaved_text_asks(settings: Screen, gateway: Running) -> None:
    page = settings.page
    stay = page.get_by_role("dialog").get_by_role("button", name="Cancel")
    leave = page.get_by_role("dialog").get_by_role("button", name="Leave")
    ways: list[Callable[[], object]] = [
        page.get_by_role("link", name="Keys").click,
        page.go_back,
        lambda: press_keys(page, "g", "k"),
    ]
    for way in ways:
        way()
        settings.keep("settings-leaving")
        stay.click()
        expect(page).to_have_url(re.compile("/console/settings"))
        check_typed(page)
    page.get_by_role("link", name="Skip to the content").press("Enter")
    expect(page.locator("main")).to_be_focused()
    check_typed(page)
    page.go_back()
    leave.click()
    expect(page).to_have_url(f"{gateway.url}/console/help")
    page.go_forward()
    page.get_by_text("Edit the file").wait_for()
    expect(page.locator("textarea")).not_to_have_value(TYPED)


def test_a_reload_with_unsaved_text_asks_and_without_does_not(settings: Screen) -> None:
    prompts: list[str] = []

    def accept(dialog: Dialog) -> None:
        prompts.append(dialog.type)
        dialog.accept()

    settings.page.on("dialog", accept)
    settings.page.reload()
    assert prompts == ["beforeunload"]
    settings.page.reload()
    settings.page.locator("textarea").wait_for()
    assert prompts == ["beforeunload"]


def test_text_outlasts_the_end_of_the_session(chromium: Browser, gateway: Running) -> None:
    with screen(chromium, gateway, "settings?edit=1") as tab:
        tab.allowed = re.compile("401")
        tab.page.locator("textarea").fill(TYPED)
        sessions = tab.page.evaluate(
            "fetch('/console/sessions', {headers: {'x-dragoman-console': sessionStorage['dragoman-token']}})"
            ".then(answer => answer.json())"
        )["sessions"]
        [own] = [one["id"] for one in sessions if one["is_this"]]
        tab.page.evaluate(
            "id => fetch('/console/sessions/' + id, {method: 'DELETE',"
            " headers: {'x-dragoman-console': sessionStorage['dragoman-token']}})",
            own,
        )
        tab.page.get_by_role("button", name="Check and compare").click()
        tab.page.get_by_label("Client key").fill(KEY)
        tab.page.keyboard.press("Enter")
        check_typed(tab.page)
        expect(tab.page.locator("main")).to_contain_text("what you typed before")


def test_a_prompt_outlasts_a_visit_to_another_page(tab: Screen) -> None:
    tab.open("models")
    tab.page.get_by_label("Prompt").fill("A long thought")
    tab.page.get_by_label("Add a model").fill("echo-think")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("link", name="Keys").click()
    tab.page.get_by_role("table").wait_for()
    tab.page.go_back()
    expect(tab.page.get_by_label("Prompt")).to_have_value("A long thought")
    expect(tab.page.get_by_role("button", name="echo-think")).to_be_visible()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("inspect/%E0%A4%A", "No request with this id is known"),
        *(
            pytest.param(f"inspect/{id}", "No request with this id is known", marks=pytest.mark.rest)
            for id in ("%00", "", "x" * 300)
        ),
        ("keys/%E0%A4%A", "someone"),
        ("requests?q=%E0%A4%A", "No request matches this filter"),
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


def test_whoever_opens_a_page_before_the_first_one_is_known_stays_there(chromium: Browser, gateway: Running) -> None:
    held: list[Route] = []
    first = re.compile("requests[?]limit=1$")
    with screen(chromium, gateway, None) as tab:
        tab.page.route(first, lambda route: held.append(route))
        with tab.page.expect_request(first):
            tab.sign_in()
        tab.page.keyboard.press("?")
        expect(tab.page.get_by_role("heading", name="Help")).to_be_visible()
        with tab.page.expect_response(first) as answered:
            held[0].continue_()
        answered.value.finished()
        tab.page.wait_for_timeout(200)  # for whatever follows from the answer
        expect(tab.page).to_have_url(re.compile("/console/help$"))
        expect(tab.page.get_by_role("heading", name="Help")).to_be_visible()


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

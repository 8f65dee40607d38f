"""Every page of the console in a real browser: busy, empty, forbidden and failed; widths, names and roles."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Download, Request, Route, expect

from console.screen import SETTLED, Screen, screen
from console.traffic import ECHO, ask, make_capturing_config
from gateway import KEY, Running, running

PAGES = ("live", "requests", "usage", "models", "accounts", "keys", "budgets", "settings", "doctor", "connect", "help")
FOR_OWNERS = ("models", "accounts", "keys", "budgets", "settings", "doctor")
LOADED = ("requests", "usage", *FOR_OWNERS)


def each(few: Sequence[str], every: Sequence[str]) -> pytest.MarkDecorator:
    """Try some pages in `make test`, and all of them in `make test-rest`."""
    return pytest.mark.parametrize("pages", [few, pytest.param(every, marks=pytest.mark.rest)], ids=["some", "all"])


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("pages"))
    with running(make_capturing_config(directory / "captures"), directory, stored=["someone", "laptop"]) as started:
        for number in range(3):
            ask(started, f"Request {number}", "claude-sonnet-4-5", f"page-{number}", started.keys["laptop"])
        ask(started, model="no-such-model", request_id="page-failed")
        started.capture("page-failed")
        yield started


def test_every_busy_page_is_whole_at_every_width(tab: Screen) -> None:
    for name in PAGES:
        tab.open_whole(name)
        expect(tab.page.locator("main .failed")).to_have_count(0)
        tab.keep(name)
        tab.check_page(name)


def test_the_tables_of_requests_fit_a_laptop(tab: Screen) -> None:
    for name in ("live", "requests"):
        tab.open_whole(name)
        for width in (1280, 1440):
            tab.page.set_viewport_size({"width": width, "height": 800})
            assert tab.page.evaluate(HIDDEN_WIDTHS) == [0], (name, width)


HIDDEN_WIDTHS = """[...document.querySelectorAll(".scroll")].map(one => one.scrollWidth - one.clientWidth)"""


@each(("live", "inspect/page-1"), (*PAGES, "inspect/page-1"))
def test_a_first_visit_is_small_and_needs_few_requests(
    chromium: Browser, gateway: Running, pages: Sequence[str]
) -> None:
    for name in pages:
        context = chromium.new_context()
        page = context.new_page()
        requests: list[str] = []
        page.on("request", partial(add_address, requests))
        address = Screen(page, gateway).find_address(name)
        page.goto(f"{address}#t={gateway.make_console_link()}")
        page.locator("main h1").wait_for()
        page.wait_for_function(SETTLED)
        files = [url for url in requests if "/api/" not in url]
        assert 5 < len(files) <= 20, (name, files)
        assert int(page.evaluate(PACKED)) < 60_000, name
        context.close()


PACKED = """performance.getEntriesByType("resource").reduce((sum, one) => sum + one.encodedBodySize, 0)"""


def add_address(requests: list[str], request: Request) -> None:
    requests.append(request.url)


def test_the_inspector_of_a_capture_is_whole(tab: Screen) -> None:
    tab.open("inspect/page-1")
    expect(tab.page.get_by_role("table", name="Timeline of the request")).to_contain_text("message_stop")
    tab.keep("inspect-page")
    tab.check_page("inspect")


@each(("live", "requests", "usage"), PAGES)
def test_an_empty_page_says_the_next_step(chromium: Browser, tmp_path: Path, pages: Sequence[str]) -> None:
    with running(ECHO, tmp_path, stored=["someone"]) as gateway, screen(chromium, gateway) as tab:
        expect(tab.page).to_have_url(re.compile("/console/connect"))  # a first start opens it
        for name in pages:
            tab.open_whole(name)
            tab.keep(f"{name}-empty")
            expect(tab.page.locator("main .failed")).to_have_count(0)
            if name in ("live", "requests", "usage"):
                expect(tab.page.locator("main .empty")).to_be_visible()


def test_a_later_start_opens_live(tab: Screen) -> None:
    tab.page.goto(f"{tab.gateway.url}/console")
    expect(tab.page).to_have_url(f"{tab.gateway.url}/console/live")
    assert KEY not in tab.page.content()


@each(("models", "keys"), FOR_OWNERS)
def test_a_client_key_reads_that_a_page_is_not_for_it(
    chromium: Browser, gateway: Running, pages: Sequence[str]
) -> None:
    with screen(chromium, gateway, key=gateway.keys["someone"]) as tab:
        tab.allowed = re.compile("403")
        for name in pages:
            tab.open(name)
            expect(tab.page.locator("main")).to_contain_text("Not for this key")
            tab.keep(f"{name}-forbidden")


@each(("requests", "keys"), LOADED)
def test_a_failure_is_shown_with_a_way_to_try_again(tab: Screen, pages: Sequence[str]) -> None:
    body = '{"error":{"code":"overloaded","message":"The store cannot be read <b>now</b>.","field":null}}'
    tab.allowed = re.compile("503")
    for name in pages:
        tab.page.route("**/api/v1/**", lambda route: route.fulfill(status=503, body=body))
        tab.open(name)
        expect(tab.page.locator("main .failed")).to_contain_text("The store cannot be read <b>now</b>.")
        tab.keep(f"{name}-failed")
        tab.page.unroute("**/api/v1/**")
        tab.page.get_by_role("button", name="Try again").click()
        expect(tab.page.locator("main .failed")).to_have_count(0)


def test_what_was_loaded_before_stays_and_is_called_stale(tab: Screen) -> None:
    tab.allowed = re.compile("503")
    tab.open("usage")
    expect(tab.page.get_by_role("table", name="Usage by model")).to_be_visible()
    tab.page.route("**/api/v1/**", lambda route: route.fulfill(status=503, body="{}"))
    tab.page.get_by_label("By").select_option("client")
    expect(tab.page.get_by_role("alert")).to_contain_text("Not up to date: this is what was known at")
    expect(tab.page.get_by_role("table", name="Usage by model")).to_be_visible()
    tab.keep("usage-stale")
    tab.page.unroute("**/api/v1/**")
    tab.page.get_by_role("button", name="Try again").click()
    expect(tab.page.get_by_role("table", name="Usage by client")).to_be_visible()
    expect(tab.page.get_by_role("alert")).to_have_count(0)


def test_an_answer_that_comes_too_late_does_not_replace_a_newer_one(tab: Screen) -> None:
    held: list[Route] = []
    tab.page.route(re.compile("/usage[?].*by=key"), lambda route: held.append(route))
    tab.open("usage")
    expect(tab.page.get_by_role("table", name="Usage by model")).to_be_visible()
    tab.page.get_by_label("By").select_option("key")
    tab.page.get_by_label("By").select_option("client")
    expect(tab.page.get_by_role("table", name="Usage by client")).to_be_visible()
    with tab.page.expect_response("**/api/v1/accounts"):  # which is the last that it asks for
        held[0].continue_()
    tab.page.evaluate("new Promise(done => setTimeout(done))")
    expect(tab.page.get_by_role("table", name="Usage by client")).to_contain_text("claude-cli")


def test_requests_are_filtered_by_the_address_and_exported(tab: Screen) -> None:
    tab.allowed = re.compile("400")
    tab.open("requests?q=outcome:!ok")
    expect(tab.page.get_by_role("row")).to_have_count(2)
    expect(tab.page.locator("main")).to_contain_text("no-such-model")
    tab.page.get_by_label("Filter").fill("nonsense:1")
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("alert")).to_contain_text("nonsense")
    tab.page.get_by_label("Filter").fill("")
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("row")).not_to_have_count(2)
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="CSV").click()
    assert read(download.value).startswith(b"time,")


def read(download: Download) -> bytes:
    return Path(download.path()).read_bytes()


def test_a_key_is_created_shown_once_rotated_and_revoked(tab: Screen, gateway: Running) -> None:
    tab.open("keys")
    tab.page.get_by_role("button", name="Create a key").click()
    tab.page.get_by_label("Name").fill("from the page")
    tab.page.get_by_role("button", name="Create", exact=True).click()
    secret = tab.page.get_by_role("status").locator("code").inner_text()
    assert ask(gateway, key=secret) == 200
    tab.keep("keys-created")
    tab.page.reload()
    row = tab.page.get_by_role("row").filter(has_text="from the page")
    row.wait_for()
    assert secret not in tab.page.content()
    held: list[Route] = []
    tab.page.route("**/api/v1/keys", lambda route: held.append(route), times=1)  # the old row stays
    row.get_by_role("button", name="Rotate").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    expect(tab.page.get_by_role("heading", name="is rotated")).to_be_visible()
    row.get_by_role("button", name="Revoke").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    held[0].continue_()
    assert ask(gateway, key=secret) == 401


def test_the_file_is_checked_compared_and_written(chromium: Browser, tmp_path: Path) -> None:
    with running(ECHO, tmp_path, stored=["someone"]) as gateway, screen(chromium, gateway, "settings") as tab:
        tab.allowed = re.compile("412")
        tab.page.get_by_text("Edit the file").click()
        area = tab.page.locator("textarea")
        area.fill(f"{ECHO}[retry]\natempts = 2\n")
        tab.page.get_by_role("button", name="Check and compare").click()
        expect(tab.page.locator("main")).to_contain_text('did you mean "attempts"')
        expect(tab.page.get_by_role("button", name="Write and reload")).to_be_disabled()
        area.fill(f'{ECHO}[tools.web_search]\ncommand = ["id"]\n')
        tab.page.get_by_role("button", name="Check and compare").click()
        expect(tab.page.locator("main")).to_contain_text("edit the file on the gateway's machine")
        tab.keep("settings-refused")
        area.fill(f"{ECHO}[retry]\nattempts = 2\n")
        tab.page.get_by_role("button", name="Check and compare").click()
        expect(tab.page.get_by_role("region", name="Difference")).to_contain_text("+attempts = 2")
        tab.keep("settings-edited")
        tab.page.get_by_role("button", name="Write and reload").click()
        expect(tab.page.locator("main")).to_contain_text("Written and in effect.")
        row = tab.page.get_by_role("row").filter(has_text="retry.attempts")
        expect(row).to_contain_text("2")
        assert gateway.app.gateway.runtime.config.retry.attempts == 2
        area.fill(f"{ECHO}[retry]\nattempts = 4\n")
        tab.page.get_by_role("button", name="Check and compare").click()
        expect(tab.page.get_by_role("region", name="Difference")).to_contain_text("+attempts = 4")
        (tmp_path / "dragoman.toml").write_text(f"{ECHO}[retry]\nattempts = 3\n")
        tab.page.get_by_role("button", name="Write and reload").click()
        expect(tab.page.locator("main .failed")).to_contain_text("changed meanwhile")

"""Signing in, the live page and the inspector, in a real browser."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from console.screen import Screen, screen
from console.traffic import ECHO, ask, make_capturing_config, own_id, write_words
from fakes.upstream import FakeUpstream, Gate
from gateway import KEY, Running, provider_section, running, running_workers

NO_WAIT = "const later = setTimeout; window.setTimeout = (act, ms) => (ms === 150 ? act() : later(act, ms));"
LONG = " ".join(f"word{number}" for number in range(150))


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    with FakeUpstream(keep_alive=False) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, fake: FakeUpstream) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("live"))
    toml = make_capturing_config(directory / "captures") + provider_section("chat", fake.url)
    with running(toml, directory, stored=["someone"]) as started:
        yield started


def test_a_wrong_key_is_refused_and_a_right_one_opens_the_console(chromium: Browser, gateway: Running) -> None:
    with screen(chromium, gateway, None) as tab:
        tab.allowed = re.compile("401")
        tab.page.goto(gateway.url)
        tab.page.get_by_label("Client key").fill("wrong")
        tab.page.get_by_role("button", name="Sign in").click()
        expect(tab.page.get_by_role("alert")).to_contain_text("dragoman keys create")
        tab.keep("sign-in")
        tab.check_width()
        tab.page.get_by_label("Client key").fill(KEY)
        tab.page.keyboard.press("Enter")
        tab.page.get_by_role("navigation").wait_for()
        assert KEY not in tab.page.content()
        assert KEY not in str(tab.page.evaluate("Object.values({...sessionStorage, ...localStorage})"))
        assert tab.page.evaluate("document.cookie") == ""


def test_a_one_time_link_signs_in_and_leaves_no_trace_in_the_address(chromium: Browser, gateway: Running) -> None:
    token = gateway.make_console_link()
    with screen(chromium, gateway, None) as tab:
        tab.page.goto(f"{gateway.url}/console#t={token}")
        tab.page.get_by_role("navigation").wait_for()
        assert "#" not in tab.page.url
    with screen(chromium, gateway, None) as tab:
        tab.allowed = re.compile("401")
        tab.page.goto(f"{gateway.url}/console#t={token}")
        expect(tab.page.get_by_role("alert")).to_contain_text("dragoman console")


@pytest.mark.rest
def test_a_second_tab_needs_no_second_sign_in_and_signing_out_ends_both(chromium: Browser, gateway: Running) -> None:
    with screen(chromium, gateway) as tab:
        other = tab.page.context.new_page()
        other.goto(f"{gateway.url}/console/live")
        other.get_by_role("navigation").wait_for()
        late = tab.page.context.new_page()
        late.add_init_script(NO_WAIT)  # so that every other tab answers late
        late.goto(f"{gateway.url}/console/keys")
        late.get_by_role("heading", name="Keys").wait_for()
        tab.page.get_by_role("button", name="Sign out").click()
        tab.page.get_by_label("Client key").wait_for()
        other.get_by_label("Client key").wait_for()


def test_the_live_page_follows_a_stream_and_the_inspector_shows_its_frames(
    tab: Screen, gateway: Running, fake: FakeUpstream
) -> None:
    is_followed = threading.Event()
    fake.answers = [write_words(150, Gate(is_followed, at=8000))]
    tab.open("live")
    client = threading.Thread(target=ask, args=(gateway, LONG, "up/claude-sonnet-4-5", "shown-1"))
    client.start()
    row = tab.page.get_by_role("row").filter(has_text="streaming")
    expect(row).to_contain_text("claude-sonnet-4-5")
    expect(tab.page.get_by_text("Under way", exact=True).locator("..")).to_contain_text("1")
    tab.keep("live")
    tab.check_width()
    row.press("Enter")
    expect(tab.page).to_have_url(f"{gateway.url}/console/inspect/{own_id(gateway, 'shown-1')}")
    timeline = tab.page.get_by_role("table", name="Timeline of the request")
    expect(timeline).to_contain_text('delta 0 "w30 "')
    expect(timeline).to_contain_text("content_block_delta")
    expect(tab.page.locator("main")).to_contain_text("streaming")
    tab.keep("inspector-live")
    tab.page.get_by_role("button", name="Follow the end").click()
    is_followed.set()
    client.join(60)
    expect(tab.page.locator("main")).to_contain_text("Nothing was lost in translation")
    expect(timeline).to_contain_text("message_stop")
    expect(timeline.get_by_role("row").last).to_be_in_viewport()
    expect(tab.page.get_by_role("button", name="Follow the end")).to_be_hidden()
    live_text = timeline.text_content() or ""
    tab.check_width()
    tab.page.reload()
    expect(timeline).to_contain_text("message_stop")
    expect(timeline).to_have_text(live_text)


def test_freezing_keeps_the_rows_and_a_stream_can_be_ended(tab: Screen, gateway: Running) -> None:
    ask(gateway, key=gateway.keys["someone"])
    tab.open("live")
    expect(tab.page.get_by_role("row").nth(1)).to_contain_text("someone")
    tab.page.keyboard.press("f")
    expect(tab.page.get_by_role("button", name="Frozen: continue")).to_be_visible()
    endless = {"text": LONG * 40, "request_id": "ended-1", "max_tokens": 5000}
    client = threading.Thread(target=ask, args=(gateway,), kwargs=endless)
    client.start()
    expect(tab.page.get_by_text("Under way", exact=True).locator("..")).to_contain_text("1")
    assert tab.page.get_by_role("row").filter(has_text="streaming").count() == 0
    tab.page.keyboard.press("f")
    tab.page.get_by_role("button", name="End", exact=True).click()
    tab.page.get_by_role("dialog").get_by_role("button", name="End it").click()
    client.join(60)
    expect(tab.page.get_by_role("row").filter(has_text="ended by operator")).to_be_visible()


def test_one_page_shows_inspects_and_ends_what_two_workers_do(chromium: Browser, tmp_path: Path) -> None:
    with running_workers(ECHO, tmp_path) as workers:
        long = {"text": LONG * 40, "max_tokens": 5000}
        clients = [
            threading.Thread(target=ask, args=(worker,), kwargs={**long, "request_id": f"worker-{number}"})
            for number, worker in enumerate(workers)
        ]
        for client in clients:
            client.start()
        with screen(chromium, workers[0], "live") as tab:
            expect(tab.page.get_by_role("row").filter(has_text="streaming")).to_have_count(2)
            expect(tab.page.get_by_text("Under way", exact=True).locator("..")).to_contain_text("2")
            assert "does not answer" not in (tab.page.locator("main").inner_text())
            tab.open("inspect/worker-1")
            expect(tab.page.locator("main")).to_contain_text("from the moment in which you opened this page")
            expect(tab.page.get_by_role("table", name="Timeline of the request")).to_contain_text("content_block_delta")
            tab.keep("inspector-late")
            tab.open("live")
            for ended in (1, 2):
                tab.page.get_by_role("button", name="End", exact=True).first.click()
                tab.page.get_by_role("dialog").get_by_role("button", name="End it").click()
                expect(tab.page.get_by_role("row").filter(has_text="forbidden")).to_have_count(ended)
        for client in clients:
            client.join(60)


def test_the_page_shows_that_its_gateway_has_stopped(chromium: Browser, tmp_path: Path) -> None:
    with running(make_capturing_config(tmp_path / "captures"), tmp_path, stored=["someone"]) as gateway:
        ask(gateway)
        context = chromium.new_context()
        page = context.new_page()
        page.goto(f"{gateway.url}/console/live#t={gateway.make_console_link()}")
        page.get_by_role("row").filter(has_text="claude-cli").wait_for()
    expect(page.locator("main")).to_contain_text("Not live")
    expect(page.get_by_role("banner")).to_contain_text("reconnecting")
    context.close()

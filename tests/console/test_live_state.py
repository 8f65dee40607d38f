"""What the live page says is so: after a restart, while the gateway is frozen, and while rows change places."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from console.screen import Screen, screen
from console.traffic import ECHO, PRICED, ask
from gateway import Running, running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("live"))
    with running(ECHO, directory, stored=["someone"]) as started:
        yield started


def figure(tab: Screen, name: str) -> Locator:
    return tab.page.get_by_text(name, exact=True).locator("..").locator("dd")


def test_the_last_hour_counts_requests_from_before_a_restart(chromium: Browser, tmp_path: Path) -> None:
    with running(ECHO + PRICED, tmp_path, stored=["someone"]) as before:
        for model in ("echo", "echo", "no-such-model"):
            ask(before, model=model, key=before.keys["someone"])
        secret = before.keys["someone"]
    with running(ECHO + PRICED, tmp_path, stored=["another"]) as after:
        with screen(chromium, after, "live") as tab:
            expect(figure(tab, "Requests in the last hour")).to_have_text("3")
            expect(figure(tab, "Errors in 5 min")).to_have_text("✕ 1")
            expect(figure(tab, "Cost in the last hour")).to_contain_text("$0.0")
            ask(after)
            expect(figure(tab, "Requests in the last hour")).to_have_text("4")
            tab.keep("live-restarted")
        with screen(chromium, after, key=after.keys["another"]) as tab:
            tab.open("live")
            expect(figure(tab, "Requests in the last hour")).to_have_text("0")
        with screen(chromium, after, key=secret) as tab:
            tab.open("live")
            expect(figure(tab, "Requests in the last hour")).to_have_text("3")


@contextmanager
def frozen(gateway: Running) -> Iterator[None]:
    """Let the gateway do nothing, as a stopped process does: its connections stay open."""
    is_frozen, may_go_on = threading.Event(), threading.Event()

    def freeze() -> None:
        is_frozen.set()
        may_go_on.wait(60)

    gateway.loop.call_soon_threadsafe(freeze)
    assert is_frozen.wait(60)
    try:
        yield
    finally:
        may_go_on.set()


def test_a_feed_without_a_sign_of_life_is_stale_after_30_s(tab: Screen, gateway: Running) -> None:
    ask(gateway)
    tab.page.clock.install()
    tab.open("live")
    banner, notice = tab.page.get_by_role("banner"), tab.page.get_by_text("The gateway has sent nothing for 30 s")
    expect(banner).to_contain_text("● Live")
    expect(tab.page.get_by_role("row").nth(1)).to_be_visible()
    with frozen(gateway):
        tab.page.clock.fast_forward(29_000)
        expect(banner).to_contain_text("● Live")
        tab.page.clock.fast_forward(2_000)
        expect(banner).to_contain_text("Not live")
        expect(notice).to_be_visible()
        expect(tab.page.get_by_role("row").nth(1)).to_be_visible()
        tab.keep("live-frozen")
        tab.page.clock.fast_forward(31_000)  # nor does it answer the next connection
        expect(banner).to_contain_text("Not live")
    expect(banner).to_contain_text("● Live")
    expect(notice).to_be_hidden()


def test_a_page_whose_gateway_is_frozen_does_not_load_for_ever(tab: Screen, gateway: Running) -> None:
    tab.page.clock.install()
    tab.open("help")
    with frozen(gateway):
        tab.page.get_by_role("link", name="Requests").click()
        expect(tab.page.locator("main")).to_contain_text("Loading")
        tab.page.clock.fast_forward(31_000)
        expect(tab.page.locator("main .failed")).to_contain_text("The gateway has not answered for 30 s")
    tab.page.get_by_role("button", name="Try again").click()
    expect(tab.page.locator("main .failed")).to_have_count(0)

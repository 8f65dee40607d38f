"""What the live page says is so: after a restart, while the gateway is frozen, and while rows change places."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from console.screen import HIDE, Screen, screen
from console.traffic import ECHO, PRICED, ask, write_words
from fakes.upstream import Answer, FakeUpstream, Gate, ReceivedRequest
from gateway import Running, provider_section, running

MODELS = ("first", "second", "third")


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    with FakeUpstream(keep_alive=False) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, fake: FakeUpstream) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("live"))
    with running(ECHO + provider_section("chat", fake.url), directory, stored=["someone"]) as started:
        yield started


def figure(tab: Screen, name: str) -> Locator:
    return tab.page.get_by_text(name, exact=True).locator("..").locator("dd")


@pytest.mark.rest
def test_the_last_hour_counts_requests_from_before_a_restart(chromium: Browser, tmp_path: Path) -> None:
    with running(ECHO + PRICED, tmp_path, stored=["someone"]) as before:
        for model in ("echo", "echo", "no-such-model"):
            ask(before, model=model, key=before.keys["someone"])
        secret = before.keys["someone"]
    with running(ECHO + PRICED, tmp_path, stored=["another"]) as after:
        with screen(chromium, after, "live") as tab:
            expect(figure(tab, "Requests in the last hour")).to_have_text("3")
            expect(figure(tab, "Errors in 5 min")).to_have_text("✕ 1")
            expect(tab.page.locator("main .empty")).to_contain_text("Earlier ones are on Requests")
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


def test_a_feed_is_connected_again_after_its_tab_was_hidden_meanwhile(tab: Screen, gateway: Running) -> None:
    tab.allowed = re.compile("ERR_FAILED")
    tab.page.clock.install()
    tab.open("live")
    banner = tab.page.get_by_role("banner")
    expect(banner).to_contain_text("● Live")
    tab.page.route("**/api/v1/feed*", lambda route: route.abort())
    refused = tab.page.expect_event("requestfailed", lambda request: request.failure == "net::ERR_FAILED")
    with refused, frozen(gateway):
        tab.page.clock.fast_forward(31_000)
    expect(banner).to_contain_text("Not live")
    tab.page.unroute("**/api/v1/feed*")
    for is_hidden in (True, False):
        tab.page.evaluate(HIDE, is_hidden)
    tab.page.clock.run_for(10_000)
    expect(banner).to_contain_text("● Live")


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


@contextmanager
def streaming(gateway: Running, fake: FakeUpstream) -> Iterator[dict[str, threading.Event]]:
    """Begin a stream of each model, one after the other, that ends with its event."""
    opened = {model: threading.Event() for model in MODELS}

    def choose(request: ReceivedRequest) -> Answer:
        return write_words(40, Gate(opened[str(request.json["model"])], at=2000))

    fake.choose = choose
    clients = [threading.Thread(target=ask, args=(gateway, "Hi", f"up/{model}", model)) for model in MODELS]
    for number, client in enumerate(clients, 1):
        client.start()
        while len(fake.calls) % len(MODELS) != number % len(MODELS):
            client.join(0.005)
    yield opened
    for model in MODELS:
        opened[model].set()
    for client in clients:
        client.join(60)


def test_the_focus_stays_on_its_row_while_others_end(tab: Screen, gateway: Running, fake: FakeUpstream) -> None:
    tab.open("live")
    rows = tab.page.locator("tbody tr")
    with streaming(gateway, fake) as opened:
        expect(rows.filter(has_text="streaming")).to_have_count(3)
        expect(rows.first).to_contain_text("up/third")
        focused = rows.filter(has_text="up/second")
        focused.focus()
        for ended, left in (("third", 2), ("first", 1)):
            opened[ended].set()
            expect(rows.filter(has_text="streaming")).to_have_count(left)
            expect(focused).to_be_focused()
        expect(rows.first).to_contain_text("up/second")
        focused.get_by_role("button", name="End").focus()
        opened["second"].set()
        expect(rows.filter(has_text="streaming")).to_have_count(0)
        expect(focused).to_be_focused()  # its button is gone

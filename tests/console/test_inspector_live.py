"""The inspector of a request under way and at its end: attempts, clock, replay, and what a key may see."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

import asking
from console.screen import Screen, screen
from console.traffic import ask, make_capturing_config, own_id, write_words
from fakes.upstream import Answer, FakeUpstream, Gate
from gateway import Running, provider_section, running
from scripting import write_reply
from scripting.replies import Text

BROKEN = Answer(b'{"error":{"message":"Down.","type":"server_error"}}', 500, "application/json", chunked=False)
ROUTES = '[retry]\nbase_s = 0.01\n[[models]]\nname = "both"\nto = ["up/m", "spare/m"]\n'


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    with FakeUpstream(keep_alive=False) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def spare() -> Iterator[FakeUpstream]:
    with FakeUpstream(keep_alive=False) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, fake: FakeUpstream, spare: FakeUpstream) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("inspector"))
    sections = provider_section("chat", fake.url) + provider_section("messages", spare.url, "spare")
    toml = make_capturing_config(directory / "captures").partition("[[models]]")[0] + sections + ROUTES
    with running(toml, directory, stored=["someone"]) as started:
        yield started


def fact(tab: Screen, name: str) -> Locator:
    return tab.page.locator(f"dl.facts dt:text-is('{name}') + dd")


@pytest.mark.rest
def test_the_losses_are_those_of_the_attempt_that_was_answered(
    tab: Screen, gateway: Running, fake: FakeUpstream, spare: FakeUpstream
) -> None:
    begins, ends = threading.Event(), threading.Event()
    fake.answers = [BROKEN]
    words = [Text(f"w{number} ") for number in range(40)]
    spare.answers = [write_reply("messages", words, cut=200, gate=Gate(begins, at=-1, then=Gate(ends, at=2000)))]
    tab.open("live")
    lossy = {"model": "both", "request_id": "attempts-1", "top_k": 3}  # Chat Completions has no top_k
    client = threading.Thread(target=ask, args=(gateway,), kwargs=lossy)
    client.start()
    tab.open("inspect/attempts-1")
    whole = tab.page.get_by_text("Nothing was lost in translation")
    expect(tab.page.get_by_role("heading", name="Upstream requests: 4")).to_be_visible()
    expect(whole).to_be_visible()  # the spare upstream has the request, and has not answered yet
    begins.set()
    expect(fact(tab, "State")).to_contain_text("streaming")
    expect(whole).to_be_visible()
    ends.set()
    client.join(60)
    expect(fact(tab, "State")).to_contain_text("ok")
    expect(whole).to_be_visible()
    assert gateway.capture("attempts-1").losses == ()
    assert gateway.outcome("attempts-1").losses == 0
    tab.keep("inspect-failover")


def test_the_clock_runs_during_a_stall_and_a_replay_is_offered_at_the_end(
    tab: Screen, gateway: Running, fake: FakeUpstream
) -> None:
    goes_on = threading.Event()
    fake.answers = [write_words(40, Gate(goes_on, at=2000))]
    tab.page.clock.install()
    tab.open("live")
    client = threading.Thread(target=ask, args=(gateway, "Hi", "up/m", "stalled-1"))
    client.start()
    tab.open("inspect/stalled-1")
    expect(fact(tab, "State")).to_contain_text("streaming")
    tab.page.clock.fast_forward(120_000)
    expect(fact(tab, "Duration")).to_contain_text("2 min ")
    expect(fact(tab, "Time")).to_contain_text("2 min ago")
    expect(fact(tab, "Duration")).to_contain_text("waiting for the rest of the reply of up/m")
    tab.keep("inspect-stalled")
    goes_on.set()
    client.join(60)
    expect(fact(tab, "State")).to_contain_text("ok")
    expect(fact(tab, "Duration")).not_to_contain_text("waiting")
    tab.page.clock.run_for(10_000)
    tab.page.get_by_role("button", name="Replay").click()
    expect(tab.page.get_by_role("heading", name="Replay: same")).to_be_visible()


def test_a_request_that_has_just_ended_can_be_replayed(tab: Screen, gateway: Running, fake: FakeUpstream) -> None:
    fake.answers = [write_reply("chat", [Text("Hello")])]
    tab.open("live")
    expect(tab.page.get_by_role("banner")).to_contain_text("Live")
    ask(gateway, model="up/fresh", request_id="ended-1")
    tab.page.get_by_role("row").filter(has_text="up/fresh").press("Enter")
    expect(tab.page).to_have_url(f"{gateway.url}/console/inspect/{own_id(gateway, 'ended-1')}")
    tab.page.get_by_role("button", name="Replay").click()
    expect(tab.page.get_by_role("heading", name="Replay: same")).to_be_visible()


def test_a_client_key_reads_why_it_sees_no_stream(chromium: Browser, gateway: Running, fake: FakeUpstream) -> None:
    fake.answers = [write_reply("chat", [Text("Hello")])]
    own, other = gateway.keys["someone"], "foreign-1"
    ask(gateway, model="up/m", request_id="own-1", key=own)
    ask(gateway, model="up/m", request_id=other)
    gateway.capture("own-1")
    with screen(chromium, gateway, key=own) as tab:
        main = tab.page.locator("main")
        tab.open("inspect/own-1")
        expect(main).to_contain_text("This request is captured, and this key may not read captures")
        expect(main).not_to_contain_text("not captured")
        tab.keep("inspect-no-right")
        for id in (own_id(gateway, other), "req_unknown"):
            tab.page.goto(f"{gateway.url}/console/inspect/{id}")
            expect(main).to_contain_text("No request with this id is known")
            expect(main).not_to_contain_text("up/m")


def test_a_copied_command_decodes_what_it_asks_for(tab: Screen, gateway: Running, fake: FakeUpstream) -> None:
    fake.answers = [write_reply("chat", [Text("Hello")])]
    headers = {"x-request-id": "curl-1", "accept-encoding": "gzip, br, zstd", "x-own": "kept"}
    asking.ask(gateway, "messages", "up/m", "@/etc/hostname", stream=True, headers=headers)
    gateway.capture("curl-1")
    tab.open("inspect/curl-1")
    tab.page.get_by_role("button", name="Copy as cURL").click()
    expect(tab.page.get_by_role("button", name="Copied")).to_be_visible()
    copied = str(tab.page.evaluate("navigator.clipboard.readText()"))
    assert "--compressed" in copied
    assert "accept-encoding" not in copied
    assert "-H 'x-own: kept'" in copied
    assert "--data-raw '{" in copied

"""The inspector of a request under way and at its end: attempts, its clock, what can be done with it, and for whom."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from console.screen import Screen
from console.traffic import ask, make_capturing_config
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

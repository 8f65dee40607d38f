"""What the console shows of prompt caches: in the list of requests, in the inspector, and in the sums of usage."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from asking import PATHS, send
from console.screen import Screen
from console.traffic import make_capturing_config
from fakes.upstream import FakeUpstream
from gateway import Running, provider_section, running
from scripting import write_reply
from scripting.replies import ScriptedReply, Text, Tokens
from wire_json import Json

PRICE = '[[prices]]\nmodel = "*claude-sonnet-5"\ninput = 3.0\noutput = 15.0\ncache_read = 0.3\ncache_write = 3.75\n'
HOSTILE = "<img src=x onerror=alert(1)>"
RULES = "Answer in one word. " * 400


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("caches"))
    with FakeUpstream() as fake:
        toml = make_capturing_config(directory / "captures") + PRICE + provider_section("messages", fake.url)
        with running(toml, directory, stored=["laptop"]) as started:
            history: list[Json] = []
            turns = ((f"{HOSTILE} 2026-11-17. {RULES}", 0), (f"{HOSTILE} 2026-11-17. {RULES}", 2_090))
            for number, (system, read) in enumerate((*turns, (f"{HOSTILE} 2026-11-18. {RULES}", 0))):
                history.append({"role": "user", "content": f"turn {number}"})
                tokens = Tokens(2_100 + number, 5, cached=read, written=2_090 - read)
                fake.answers = [write_reply("messages", ScriptedReply((Text("Yes."),), tokens=tokens), stream=False)]
                messages = [{"role": "system", "content": system}, *history]
                body = {"model": "up/claude-sonnet-5", "max_tokens": 9, "messages": messages}
                headers = {"x-request-id": f"turn-{number}", "session-id": "the session"}
                assert send(started, "POST", PATHS["chat"], body, headers=headers).status == 200
                history.append({"role": "assistant", "content": "Yes."})
                started.capture(f"turn-{number}")
            yield started


def test_the_inspector_names_the_difference(tab: Screen) -> None:
    tab.open_whole("inspect/turn-2")
    page = tab.page
    expect(page.get_by_text("miss: system at /system/0")).to_be_visible()
    page.get_by_role("button", name="Explain the cache").click()
    for shown in ("miss: date_or_time", "/system/0/text", "/messages/0/content", "Compared with", "What to do"):
        expect(page.get_by_text(shown).first).to_be_visible()
    expect(page.locator(".diff .add").first).to_contain_text(f"{HOSTILE} 2026-11-18")
    tab.check_page("cache")
    tab.keep("inspect-cache")


def test_a_hit_says_so(tab: Screen) -> None:
    tab.open_whole("inspect/turn-1")
    tab.page.get_by_role("button", name="Explain the cache").click()
    expect(tab.page.get_by_text("the upstream read what it could from its cache")).to_be_visible()


def test_the_list_of_requests_names_causes(tab: Screen) -> None:
    tab.open_whole("requests")
    for cause in ("first", "hit", "system"):
        expect(tab.page.get_by_role("cell", name=cause, exact=True).first).to_be_visible()
    tab.keep("requests-cache")


def test_usage_shows_what_caches_had_and_saved(tab: Screen) -> None:
    tab.open_whole("usage")
    expect(tab.page.get_by_text("Saved by caches")).to_be_visible()
    expect(tab.page.get_by_text("of what they could have had").first).to_be_visible()
    expect(tab.page.get_by_role("columnheader", name="Of possible")).to_be_visible()
    tab.check_page("usage-cache")
    tab.keep("usage-cache")

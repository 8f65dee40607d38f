"""The recording versions of tool backends pass everything on and note each run."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.config.secret import SecretSource
from dragoman.config.settings import Tools, WebFetch, WebSearch
from dragoman.flow.capture.format import LookupName
from dragoman.flow.capture.recording_tools import describe_backends, describe_tools, record_plan
from dragoman.hub.server_tools import FetchOutcome, Page, SearchFound, SearchOutcome, SearchResult, ToolText
from dragoman.tools.addresses import DomainRules
from dragoman.tools.backends import McpServers, ToolPlan, make_plan
from dragoman.tools.web_search import SearchQuery
from flow.capture.recordings import looked_up, make_recording
from flow.in_memory import run

FOUND = SearchFound((SearchResult("https://a.example/", "One", "the key is sk-canary-1234"),))


class Index:
    """A search service that finds one page, and nothing at all for "forever"."""

    name = "index"

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        if query.text == "forever":
            await asyncio.get_running_loop().create_future()
        return FOUND


class Library:
    name = "library"

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        return Page(url, "One", "Text")


def plan_with_secret() -> ToolPlan:
    secrets = (b"sk-canary-1234",)
    return make_plan(Index(), Library(), frozenset(), Tools(), McpServers(), secrets)


def test_runs_are_noted_without_secrets() -> None:
    recording = make_recording()
    plan = record_plan(plan_with_secret(), "up", recording)
    assert plan.search is not None
    assert plan.fetch is not None
    assert run(plan.search.search(SearchQuery("bears", 3), 1.0)) == FOUND
    page = run(plan.fetch.fetch("https://a.example/", DomainRules()))
    assert isinstance(page, Page)
    assert page.retrieved_at
    first, second = looked_up(recording, "up", LookupName.TOOL_RUN)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert (first["value"]["tool"], first["value"]["backend"], first["value"]["input"]) == (
        *("web_search", "index", "bears"),
    )
    assert "canary" not in str(first)
    assert second["value"]["outcome"]["retrieved_at"] == page.retrieved_at


@pytest.mark.parametrize("text", [ToolText("Finds pages.", "A query."), None])
def test_a_services_text_is_noted_for_the_replay(text: ToolText | None) -> None:
    async def describe(is_first_round: bool) -> ToolText | None:
        return text

    recording = make_recording()
    plan = record_plan(replace(plan_with_secret(), describe_search=describe), "up", recording)
    assert plan.describe_search is not None
    assert run(plan.describe_search(True)) == text
    [noted] = looked_up(recording, "up", LookupName.TOOL_TEXT)
    assert isinstance(noted, dict)
    assert msgspec.convert(noted["value"], ToolText | None) == text


def test_a_run_that_is_given_up_is_noted_without_an_outcome() -> None:
    recording = make_recording()
    plan = record_plan(plan_with_secret(), "up", recording)

    async def scenario() -> None:
        assert plan.search is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await plan.search.search(SearchQuery("forever", 3), 1.0)

    run(scenario())
    [noted] = looked_up(recording, "up", LookupName.TOOL_RUN)
    assert isinstance(noted, dict)
    assert noted["value"]["outcome"] is None


def test_the_settings_in_a_capture_have_no_secrets_addresses_or_commands() -> None:
    search = WebSearch(("mcp",), "https://host.example/", SecretSource("sk-canary"), command=("run", "--key", "canary"))
    described = describe_tools(Tools(search, WebFetch(max_chars=7)))
    assert "canary" not in str(described)
    assert "host.example" not in str(described)
    assert "'max_chars': 7" in str(described["web_fetch"])
    assert describe_backends(plan_with_secret()) == {"web_search": "index", "web_fetch": "library"}

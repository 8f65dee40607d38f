"""The replayed backends return what the captured runs returned, whatever the order of the calls."""

import asyncio
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dragoman.admin.replay.recorded_tools import replay_plans
from dragoman.flow.capture.file_format import read_capture
from dragoman.flow.capture.format import Capture, Lookup, LookupName, ToolRun
from dragoman.hub.server_tools import Page, SearchFound, SearchResult, ToolFailure, ToolOutcome
from dragoman.tools.domains import DomainRules
from dragoman.tools.plan import ToolPlan
from dragoman.tools.web_search import SearchQuery
from flow.in_memory import make_provider, run

FIXTURE = Path(__file__).parents[2] / "fixtures" / "captures" / "kiro-cut-call.json"
PAGE = Page("https://a.example/", "One", "Text", retrieved_at="2026-11-16T00:00:00+00:00")


def found(url: str) -> SearchFound:
    return SearchFound((SearchResult(url, "One"),))


def noted(tool: str, given: str, outcome: ToolOutcome | None) -> Lookup:
    run = ToolRun(tool, "index", given, outcome, 0.0, 0.01)
    return Lookup("up", LookupName.TOOL_RUN.value, {"value": msgspec.to_builtins(run)})


def capture(*lookups: Lookup) -> Capture:
    whole = read_capture(FIXTURE.read_bytes())
    backends = {"up": {"web_search": "index", "web_fetch": "library"}}
    settings = replace(whole.settings, tools={"web_search": {"results": 3}}, tool_backends=backends)
    return replace(whole, lookups=lookups, settings=settings)


def plan_of(*lookups: Lookup) -> ToolPlan:
    return replay_plans(capture(*lookups), {"up": make_provider()})["up"]


def test_a_run_is_found_by_its_input_and_used_once() -> None:
    plan = plan_of(
        noted("web_search", "a", found("https://a.example/")), noted("web_search", "b", found("https://b.example/"))
    )
    assert plan.search is not None
    assert plan.search_settings.results == 3

    async def search(text: str) -> object:
        assert plan.search is not None
        return await plan.search.search(SearchQuery(text, 3), 1.0)

    assert run(search("b")) == found("https://b.example/")
    assert run(search("a")) == found("https://a.example/")
    assert isinstance(run(search("a")), ToolFailure)


def test_a_page_is_returned_with_its_time() -> None:
    plan = plan_of(noted("web_fetch", PAGE.url, PAGE))
    assert plan.fetch is not None
    assert run(plan.fetch.fetch(PAGE.url, DomainRules())) == PAGE


def test_a_run_that_was_given_up_never_ends() -> None:
    plan = plan_of(noted("web_search", "a", None))

    async def scenario() -> bool:
        assert plan.search is not None
        try:
            async with asyncio.timeout(0.05):
                await plan.search.search(SearchQuery("a", 3), 1.0)
        except TimeoutError:
            return True
        return False

    assert run(scenario())


def test_a_capture_from_before_server_tools_has_none() -> None:
    assert replay_plans(read_capture(FIXTURE.read_bytes()), {"up": make_provider()}) == {}

"""Replay the server tools of a captured request: each run returns what it returned then, after as long."""

import asyncio
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from dragoman.config.settings import Tools, WebFetch, WebSearch
from dragoman.flow.capture.format import BESIDE_FUNCTIONS, Capture, LookupName, ToolRun, find_values
from dragoman.hub.server_tools import (
    FETCH,
    SEARCH,
    FetchOutcome,
    Page,
    SearchFound,
    SearchOutcome,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
    ToolText,
)
from dragoman.providers.provider import Provider
from dragoman.tools.backends import McpServers
from dragoman.tools.domains import DomainRules
from dragoman.tools.plan import ToolPlan, make_plan
from dragoman.tools.web_search import SearchQuery


class RecordedRuns:
    """The runs of one provider's tools. Searches run at the same time, so that a run is found by its input."""

    def __init__(self, provider: str, capture: Capture) -> None:
        self._runs = msgspec.convert(find_values(capture, LookupName.TOOL_RUN, provider), list[ToolRun])
        self._texts = msgspec.convert(find_values(capture, LookupName.TOOL_TEXT, provider), list[ToolText | None])

    async def describe(self, is_first_round: bool) -> ToolText | None:
        return self._texts.pop(0) if self._texts else None

    async def run(self, tool: str, given: str) -> ToolOutcome:
        for index, run in enumerate(self._runs):
            if (run.tool, run.input) == (tool, given):
                del self._runs[index]
                return await _repeat(run)
        return ToolFailure(ToolErrorCode.UNAVAILABLE, f"The capture has no run of {tool} with the input {given!r}.")


async def _repeat(run: ToolRun) -> ToolOutcome:
    if run.outcome is None:
        await asyncio.get_running_loop().create_future()  # never done: it is given up again
    assert run.outcome is not None
    await asyncio.sleep(run.duration_s)
    return run.outcome


class ReplayedSearch:
    def __init__(self, name: str, runs: RecordedRuns) -> None:
        self.name = name
        self._runs = runs

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        outcome = await self._runs.run(SEARCH, query.text)
        assert not isinstance(outcome, Page)
        return outcome


class ReplayedFetch:
    def __init__(self, name: str, runs: RecordedRuns) -> None:
        self.name = name
        self._runs = runs

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        outcome = await self._runs.run(FETCH, url)
        assert not isinstance(outcome, SearchFound)
        return outcome


def replay_plans(capture: Capture, providers: Mapping[str, Provider]) -> dict[str, ToolPlan]:
    """Return the plans of the captured request; none for a capture of a version that ran no tools."""
    settings = capture.settings
    search = msgspec.convert(settings.tools.get(SEARCH) or {}, WebSearch)
    fetch = msgspec.convert(settings.tools.get(FETCH) or {}, WebFetch)
    plans: dict[str, ToolPlan] = {}
    for name, backends in settings.tool_backends.items():
        if name not in providers:
            continue
        runs, tools, native = RecordedRuns(name, capture), Tools(search, fetch), providers[name].requests.hosted_tools
        plan = _replay_plan(backends, runs, native, tools)
        others = {key.removeprefix(BESIDE_FUNCTIONS): backend for key, backend in backends.items() if _is_other(key)}
        instead = _replay_plan(others, runs, frozenset(), tools) if others else None
        plans[name] = replace(plan, beside_functions=instead)
    return plans


def _is_other(key: str) -> bool:
    return key.startswith(BESIDE_FUNCTIONS)


def _replay_plan(backends: Mapping[str, str], runs: RecordedRuns, native: frozenset[str], settings: Tools) -> ToolPlan:
    search = ReplayedSearch(backends[SEARCH], runs) if SEARCH in backends else None
    fetch = ReplayedFetch(backends[FETCH], runs) if FETCH in backends else None
    return replace(make_plan(search, fetch, native, settings, McpServers()), describe_search=runs.describe)

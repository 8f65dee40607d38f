"""Record the runs of server tools, and describe the tools' settings, for a capture."""

import asyncio

import msgspec
from msgspec.structs import asdict, replace

from dragoman.config.settings import Tools, WebFetch, WebSearch
from dragoman.flow.capture.format import BESIDE_FUNCTIONS, LookupName, ToolRun
from dragoman.flow.capture.recording import Recording
from dragoman.framing.known_secrets import list_secrets
from dragoman.hub.request import Json
from dragoman.hub.server_tools import (
    FETCH,
    SEARCH,
    FetchOutcome,
    Page,
    SearchFound,
    SearchOutcome,
    ToolFailure,
    ToolOutcome,
    ToolText,
)
from dragoman.tools.addresses import DomainRules
from dragoman.tools.backends import DescribeTool, ToolPlan
from dragoman.tools.tool_results import redact_outcome
from dragoman.tools.web_fetch import FetchBackend, fetch
from dragoman.tools.web_search import SearchBackend, SearchQuery

PRIVATE_SETTINGS = ("api_key", "command", "endpoint")


def describe_tools(settings: Tools) -> dict[str, Json]:
    """Return what a replay needs of the settings: neither secrets nor where the services are."""
    return {SEARCH: _describe(settings.web_search), FETCH: _describe(settings.web_fetch)}


def _describe(settings: WebSearch | WebFetch) -> Json:
    public = {name: value for name, value in asdict(settings).items() if name not in PRIVATE_SETTINGS}
    return msgspec.to_builtins(public)


def describe_backends(plan: ToolPlan) -> dict[str, str]:
    found = ((SEARCH, plan.search), (FETCH, plan.fetch))
    named = {tool: backend.name for tool, backend in found if backend is not None}
    if plan.beside_functions is None:
        return named
    return named | {BESIDE_FUNCTIONS + tool: name for tool, name in describe_backends(plan.beside_functions).items()}


def record_plan(plan: ToolPlan, provider: str, recording: Recording) -> ToolPlan:
    """Return a plan that behaves the same and notes every run."""
    recorder = ToolRecorder(provider, recording, plan.secrets)
    return replace(
        plan,
        search=None if plan.search is None else RecordingSearch(plan.search, recorder),
        fetch=None if plan.fetch is None else RecordingFetch(plan.fetch, recorder),
        describe_search=None if plan.describe_search is None else recorder.record_text(plan.describe_search),
        beside_functions=None
        if plan.beside_functions is None
        else record_plan(plan.beside_functions, provider, recording),
    )


class ToolRecorder:
    """Notes the runs of one provider's tools in a recording."""

    def __init__(self, provider: str, recording: Recording, secrets: tuple[bytes, ...]) -> None:
        self._provider = provider
        self._recording = recording
        self._secrets = secrets

    def record_text(self, describe: DescribeTool) -> DescribeTool:
        async def describe_and_note(is_first_round: bool) -> ToolText | None:
            text = await describe(is_first_round)
            self._recording.note_lookup(
                self._provider, LookupName.TOOL_TEXT, lambda: {"value": msgspec.to_builtins(text)}
            )
            return text

        return describe_and_note

    def elapsed_s(self) -> float:
        return self._recording.elapsed_s()

    def note(self, tool: str, backend: str, given: str, outcome: ToolOutcome | None, began: float) -> None:
        recording = self._recording
        recording.secrets.update(list_secrets((), self._secrets))
        redacted = None if outcome is None else redact_outcome(outcome, tuple(recording.secrets))
        run = ToolRun(tool, backend, given, redacted, began, round(recording.elapsed_s() - began, 6))
        if recording.reserve(_size(outcome), "what tools returned"):
            recording.note_lookup(self._provider, LookupName.TOOL_RUN, lambda: {"value": msgspec.to_builtins(run)})


def _size(outcome: ToolOutcome | None) -> int:
    match outcome:
        case SearchFound(results=results, text=text):
            return sum(len(result.text) + len(result.url) for result in results) + len(text or "")
        case Page(text=text, pdf=pdf):
            return len(text) + len(pdf or "")
        case ToolFailure(message=message):
            return len(message)
        case None:
            return 0


class RecordingSearch:
    """A search backend that notes what it returns."""

    def __init__(self, backend: SearchBackend, recorder: ToolRecorder) -> None:
        self.name = backend.name
        self._backend = backend
        self._recorder = recorder

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        began = self._recorder.elapsed_s()
        try:
            outcome = await self._backend.search(query, timeout_s)
        except asyncio.CancelledError:
            self._recorder.note(SEARCH, self.name, query.text, None, began)
            raise
        self._recorder.note(SEARCH, self.name, query.text, outcome, began)
        return outcome


class RecordingFetch:
    """A fetch backend that notes what it returns, and when it was fetched."""

    def __init__(self, backend: FetchBackend, recorder: ToolRecorder) -> None:
        self.name = backend.name
        self._backend = backend
        self._recorder = recorder

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        began = self._recorder.elapsed_s()
        try:
            outcome = await fetch(self._backend, url, domains)
        except asyncio.CancelledError:
            self._recorder.note(FETCH, self.name, url, None, began)
            raise
        self._recorder.note(FETCH, self.name, url, outcome, began)
        return outcome

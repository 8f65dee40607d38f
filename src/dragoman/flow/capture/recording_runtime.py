"""Record what a request learns from its surroundings, its server tools included, and sends to upstreams.

Each class here holds the real object, passes calls on to it, and notes in the recording what came back.
"""

import asyncio
import math
import typing
from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import asdict, replace

from dragoman.accounts.lost_calls import LostCall
from dragoman.accounts.pool import Choice, CredentialChooser
from dragoman.caching.memory import SessionId
from dragoman.config.settings import Tools, WebFetch, WebSearch
from dragoman.flow.capture.format import BESIDE_FUNCTIONS, NO_PROVIDER, LookupName, ToolRun
from dragoman.flow.capture.recording import Recording
from dragoman.flow.capture.recording_provider import record_provider
from dragoman.flow.ports import CallState, LostCallMemory, MediaFetcher, ModelCatalogue, PromptMemory
from dragoman.flow.runtime import Runtime, list_known_models
from dragoman.framing.known_secrets import list_secrets
from dragoman.hub.caching import SentPrompt, SessionMemory
from dragoman.hub.failure import RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Protocol, Upstream
from dragoman.hub.profile import Target
from dragoman.hub.request import Inline, Json, Request
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
from dragoman.providers.provider import ModelInfo, Provider
from dragoman.tools.addresses import DomainRules
from dragoman.tools.backends import DescribeTool, ToolPlan
from dragoman.tools.tool_results import redact_outcome
from dragoman.tools.web_fetch import FetchBackend, fetch
from dragoman.tools.web_search import SearchBackend, SearchQuery

MAX_NAMES = 2000  # of each provider's models
PRIVATE_SETTINGS = ("api_key", "command", "endpoint")


class RecordedCall(typing.Protocol):
    """Who made a request."""

    @property
    def tenant(self) -> str: ...
    @property
    def is_owner(self) -> bool: ...


def record_runtime(runtime: Runtime, recording: Recording, call: RecordedCall) -> Runtime:
    """Return a runtime that behaves the same and notes in the recording what the call learns from it."""
    recording.owner = call.is_owner
    recording.note_settings(
        runtime.config, runtime.learned_quirks.list_known_to(call.tenant), lambda: _list_names(runtime)
    )
    if runtime.tool_plans:
        backends = {name: describe_backends(plan) for name, plan in runtime.tool_plans.items()}
        recording.note_tools(describe_tools(runtime.config.tools), backends)
    return replace(
        runtime,
        providers={name: _record_pooled(provider, recording) for name, provider in runtime.providers.items()},
        catalogues={
            name: RecordingCatalogue(catalogue, name, recording) for name, catalogue in runtime.catalogues.items()
        },
        protocols={name: _record_protocol(protocol, recording) for name, protocol in runtime.protocols.items()},
        fetcher=None if runtime.fetcher is None else RecordingFetcher(runtime.fetcher, recording),
        tool_plans={name: record_plan(plan, name, recording) for name, plan in runtime.tool_plans.items()},
        targets={},  # found anew, so that what finding them takes is noted
        settings={},  # they refer to what is replaced here
    )


def record_state(state: CallState, recording: Recording) -> None:
    """Note what a call refers to in the server's state."""
    if recording.reserve(state.size, "stored items"):
        recording.note_lookup(NO_PROVIDER, LookupName.STATE, lambda: {"value": state.record()})


def _list_names(runtime: Runtime) -> dict[str, tuple[str, ...]]:
    names = {name: models.ids[:MAX_NAMES] for name, models in list_known_models(runtime).items()}
    return {NO_PROVIDER: tuple(route.name for route in runtime.config.models[:MAX_NAMES]), **names}


def _record_pooled(provider: Provider, recording: Recording) -> Provider:
    """Record a provider, the choice among its credentials, and each of them."""
    chooser, account = None, provider.account
    if account.pool is not None:
        chooser = RecordingChooser(account.chooser or account.pool, provider.name, recording)
    return replace(
        record_provider(provider, recording),
        account=replace(account, chooser=chooser),
        members=tuple(record_provider(member, recording) for member in provider.members),
    )


def _record_protocol(protocol: Protocol, recording: Recording) -> Protocol:
    upstream = protocol.upstream
    return protocol if upstream is None else replace(protocol, upstream=_record_upstream(upstream, recording))


def _record_upstream(upstream: Upstream, recording: Recording) -> Upstream:
    def build(request: Request, target: Target, ledger: Ledger) -> bytes:
        body = upstream.build(request, target, ledger)
        recording.note_built(ledger)
        return body

    return replace(upstream, build=build)


class RecordingCatalogue:
    """A model catalogue that notes what it returns about single models."""

    def __init__(self, catalogue: ModelCatalogue, provider: str, recording: Recording) -> None:
        self._catalogue = catalogue
        self._provider = provider
        self._recording = recording

    @property
    def complete(self) -> bool:
        return self._catalogue.complete

    def list_known(self) -> tuple[ModelInfo, ...]:
        return self._catalogue.list_known()

    async def wait_for_list(self, at_most_s: float = math.inf) -> tuple[ModelInfo, ...]:
        return await self._catalogue.wait_for_list(at_most_s)

    def max_output(self, model: str) -> int | None:
        tokens = self._catalogue.max_output(model)
        self._recording.note_lookup(self._provider, LookupName.MAX_OUTPUT, lambda: {"value": tokens})
        return tokens

    def list_problem(self) -> str:
        problem = self._catalogue.list_problem()
        if problem:
            self._recording.note_lookup(self._provider, LookupName.LIST_PROBLEM, lambda: {"value": problem})
        return problem


class RecordingChooser:
    """A chooser of credentials that notes its choices."""

    def __init__(self, chooser: CredentialChooser, provider: str, recording: Recording) -> None:
        self._chooser = chooser
        self._provider = provider
        self._recording = recording

    def choose(self, session: str | None, model: str, tried: Collection[int], now: float) -> Choice | None:
        choice = self._chooser.choose(session, model, tried, now)
        member = None if choice is None else choice.member
        self._recording.note_lookup(self._provider, LookupName.CREDENTIAL, lambda: {"value": member})
        return choice

    def find_soonest_free(self, model: str, now: float) -> int:
        member = self._chooser.find_soonest_free(model, now)
        self._recording.note_lookup(self._provider, LookupName.SOONEST_CREDENTIAL, lambda: {"value": member})
        return member


class RecordingFetcher:
    """A media fetcher that notes what it fetched, or why it could not."""

    def __init__(self, fetcher: MediaFetcher, recording: Recording) -> None:
        self._fetcher = fetcher
        self._recording = recording

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        try:
            found = await self._fetcher.fetch_all(urls)
        except RequestError as error:
            failure = error.failure
            self._recording.note_lookup(
                NO_PROVIDER, LookupName.MEDIA, lambda: {"refused": msgspec.to_builtins(failure)}
            )
            raise
        if self._recording.reserve(sum(len(media.data) for media in found.values()), "fetched media"):
            self._recording.note_lookup(NO_PROVIDER, LookupName.MEDIA, lambda: {"value": msgspec.to_builtins(found)})
        return found


class RecordingMemory:
    """A memory of cut calls that notes what it recalls."""

    def __init__(self, memory: LostCallMemory, recording: Recording) -> None:
        self._memory = memory
        self._recording = recording

    async def remember(self, tenant: str, digest: bytes, lost: tuple[LostCall, ...]) -> None:
        await self._memory.remember(tenant, digest, lost)

    async def recall(self, tenant: str, digests: tuple[bytes, ...]) -> tuple[LostCall, ...]:
        lost = await self._memory.recall(tenant, digests)
        self._recording.note_lookup(NO_PROVIDER, LookupName.CUT_CALLS, lambda: {"value": msgspec.to_builtins(lost)})
        return lost


class RecordingPrompts:
    """A memory of prompts that notes what it recalls."""

    def __init__(self, memory: PromptMemory, recording: Recording) -> None:
        self._memory = memory
        self._recording = recording

    async def recall(self, id: SessionId, at: float) -> SessionMemory | None:
        known = await self._memory.recall(id, at)
        size = 0 if known is None else sum(map(len, known.branches))
        if self._recording.reserve(size, "digests of earlier prompts"):
            self._recording.note_lookup(id.provider, LookupName.PROMPTS, lambda: {"value": msgspec.to_builtins(known)})
        return known

    def record(self, id: SessionId, sent: SentPrompt, at: float) -> None:
        self._memory.record(id, sent, at)


def describe_tools(settings: Tools) -> dict[str, Json]:
    """Return what a replay needs of the settings: neither secrets nor where the services are."""
    return {SEARCH: _describe_tool(settings.web_search), FETCH: _describe_tool(settings.web_fetch)}


def _describe_tool(settings: WebSearch | WebFetch) -> Json:
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
        if recording.reserve(_size_of(outcome), "what tools returned"):
            recording.note_lookup(self._provider, LookupName.TOOL_RUN, lambda: {"value": msgspec.to_builtins(run)})


def _size_of(outcome: ToolOutcome | None) -> int:
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

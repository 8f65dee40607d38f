"""Everything that a call looks up outside itself, through one port.

A live call uses the real functions, and nothing of this module. One that is captured, or replayed, has functions of the
port instead (`look_up_through`): those of `RecordingLookups` ask the real ones and note what they answer, those of
`ReplayingLookups` answer from a capture. What is sent to upstreams is no lookup: see `recording_provider.py`.
"""

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Generic, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from dragoman.config.problems import ConfigError, Problem
from dragoman.net.headers import Header
from dragoman.proxy.capture.format import NO_PROVIDER, Capture, CapturedToolRun
from dragoman.proxy.capture.format import LookupName as Name
from dragoman.proxy.capture.masking import encode_headers, to_text
from dragoman.proxy.capture.recording import Recording
from dragoman.proxy.memories import Memories
from dragoman.proxy.ports import (
    LostCallMemory,
    MediaFetcher,
    ModelCatalogue,
    NameSession,
    PromptMemory,
    ReasoningMemory,
)
from dragoman.proxy.runtime import Runtime
from dragoman.server_tools.addresses import DomainRules
from dragoman.server_tools.backends import ToolPlan
from dragoman.server_tools.tool_results import redact_outcome
from dragoman.server_tools.web_fetch import FetchBackend, fetch
from dragoman.server_tools.web_search import SearchBackend, SearchQuery
from dragoman.state.lost_calls import LostCall
from dragoman.state.stored_call import RecordedState, StoredCall
from dragoman.translate.caching.memory import SessionId
from dragoman.translate.hub.caching import SessionMemory
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.request import Inline, Json
from dragoman.translate.hub.server_tools import (
    FETCH,
    SEARCH,
    FetchOutcome,
    SearchFound,
    SearchOutcome,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
    ToolText,
    WebPage,
)
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams.credentials.pool import CredentialChoice, CredentialChooser
from dragoman.upstreams.provider import Address, Provider

T = TypeVar("T")
P = ParamSpec("P")
AsyncFunction = Callable[P, Coroutine[object, object, T]]
Source = Provider | str  # who is asked: a provider with one credential, or a name in captures


class LookupKind(Struct, Generic[T], frozen=True):
    """One kind of lookup: how its answers stand in captures."""

    name: Name
    shape: object  # the type of an answer, for msgspec
    write: Callable[[T], Json] = msgspec.to_builtins
    parse: Callable[[Json], T] | None = None  # instead of `shape`, the reverse of `write`
    is_optional: bool = False  # older captures lack it: a replay then asks its own surroundings, which know nothing
    skips_empty: bool = False  # an empty answer is not noted
    measure: Callable[[T], tuple[int, str]] | None = None  # the bytes to reserve for it, and what those are

    def read(self, value: Json) -> T:
        """Return the answer of which this stands in a capture."""
        if self.parse is not None:
            return self.parse(value)
        answer: T = msgspec.convert(value, self.shape)
        return answer


def _read_headers(value: Json) -> tuple[Header, ...]:
    return encode_headers(msgspec.convert(value, tuple[tuple[str, str], ...]))


def _write_headers(headers: tuple[Header, ...]) -> Json:
    return [list(field) for field in to_text(headers)]


def _read_address(value: Json) -> Address:
    fields = msgspec.convert(value, dict[str, Json])
    return Address(str(fields["url"]), _read_headers(fields["headers"]))


def _write_address(address: Address) -> Json:
    return {"url": address.url, "headers": _write_headers(address.headers)}


def _read_choice(value: Json) -> CredentialChoice | None:
    return None if value is None else CredentialChoice(msgspec.convert(value, int))


def _write_choice(choice: CredentialChoice | None) -> Json:
    return None if choice is None else choice.member


def _read_options(provider: Provider, value: Json) -> object:
    upstreams = (PROTOCOLS[protocol].upstream for protocol in provider.endpoint.protocols)
    types = [upstream.options_type for upstream in upstreams if upstream is not None]
    return value if value is None or types[0] is None else msgspec.convert(value, types[0]())


def _write_state(state: RecordedState | None) -> Json:
    return None if state is None else asdict(state)  # without a copy of its items


def _measure_media(found: dict[str, Inline]) -> tuple[int, str]:
    return sum(len(media.data) for media in found.values()), "fetched media"


def _measure_prompts(known: SessionMemory | None) -> tuple[int, str]:
    return 0 if known is None else sum(map(len, known.branches)), "digests of earlier prompts"


def _measure_reasoning(digests: bytes) -> tuple[int, str]:
    return len(digests), "digests of rejected reasoning"


def _measure_run(run: CapturedToolRun) -> tuple[int, str]:
    texts: list[str | None] = []
    match run.outcome:
        case SearchFound(results=results, text=text):
            texts = [text, *(result.text + result.url for result in results)]
        case WebPage(text=text, pdf=pdf):
            texts = [text, pdf]
        case ToolFailure(message=message):
            texts = [message]
    return sum(len(text or "") for text in texts), "what tools returned"


AUTHORIZE: LookupKind[tuple[Header, ...]] = LookupKind(Name.AUTHORIZE, None, _write_headers, _read_headers)
ADDRESS: LookupKind[Address] = LookupKind(Name.ADDRESS, None, _write_address, _read_address)
RENEW: LookupKind[bool] = LookupKind(Name.RENEW, bool)
PROTOCOL_NAMES: LookupKind[tuple[str, ...]] = LookupKind(Name.PROTOCOLS, tuple[str, ...])
OPTIONS: LookupKind[object] = LookupKind(Name.OPTIONS, object)  # their type depends on the provider: `_read_options`
CONTEXT_WINDOW: LookupKind[int | None] = LookupKind(Name.CONTEXT_WINDOW, int | None, is_optional=True)
MAX_OUTPUT: LookupKind[int | None] = LookupKind(Name.MAX_OUTPUT, int | None, is_optional=True)
LIST_PROBLEM: LookupKind[str] = LookupKind(Name.LIST_PROBLEM, str, is_optional=True, skips_empty=True)
RETRY_AFTER: LookupKind[float | None] = LookupKind(Name.RETRY_AFTER, float | None, is_optional=True)
CREDENTIAL: LookupKind[CredentialChoice | None] = LookupKind(Name.CREDENTIAL, None, _write_choice, _read_choice)
SOONEST_CREDENTIAL: LookupKind[int] = LookupKind(Name.SOONEST_CREDENTIAL, int)
MEDIA: LookupKind[dict[str, Inline]] = LookupKind(Name.MEDIA, dict[str, Inline], measure=_measure_media)
CUT_CALLS: LookupKind[tuple[LostCall, ...]] = LookupKind(Name.CUT_CALLS, tuple[LostCall, ...], is_optional=True)
PROMPTS: LookupKind[SessionMemory | None] = LookupKind(
    Name.PROMPTS, SessionMemory | None, is_optional=True, measure=_measure_prompts
)
REASONING: LookupKind[bytes] = LookupKind(
    Name.REASONING, bytes, is_optional=True, skips_empty=True, measure=_measure_reasoning
)
TOOL_RUN: LookupKind[CapturedToolRun] = LookupKind(Name.TOOL_RUN, CapturedToolRun, measure=_measure_run)
TOOL_TEXT: LookupKind[ToolText | None] = LookupKind(Name.TOOL_TEXT, ToolText | None, is_optional=True)
STATE: LookupKind[RecordedState | None] = LookupKind(Name.STATE, RecordedState, _write_state, is_optional=True)
NOT_STORED: LookupKind[bool] = LookupKind(Name.NOT_STORED, bool, is_optional=True)


class Lookups(Protocol):
    """The port: it takes the place of the functions that look something up."""

    def wrap(self, source: Source, kind: LookupKind[T], ask: Callable[P, T]) -> Callable[P, T]:
        """Return the function to call instead of `ask`."""

    def wrap_async(self, source: Source, kind: LookupKind[T], ask: Callable[P, Awaitable[T]]) -> AsyncFunction[P, T]:
        """Return the function to call instead of `ask`."""

    async def run_tool(
        self, provider: str, run: CapturedToolRun, ask: Callable[[], Awaitable[ToolOutcome]]
    ) -> ToolOutcome:
        """Run a server tool. Several may run at the same time, so `run` names its tool and its input."""


class RecordingLookups:
    """Asks the real surroundings, and notes every answer and every refusal in a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def wrap(self, source: Source, kind: LookupKind[T], ask: Callable[P, T]) -> Callable[P, T]:
        def ask_and_note(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._record_refusals(source, kind):
                return self.note(source, kind, ask(*args, **kwargs))

        return ask_and_note

    def wrap_async(self, source: Source, kind: LookupKind[T], ask: Callable[P, Awaitable[T]]) -> AsyncFunction[P, T]:
        async def ask_and_note(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._record_refusals(source, kind):
                return self.note(source, kind, await ask(*args, **kwargs))

        return ask_and_note

    async def run_tool(
        self, provider: str, run: CapturedToolRun, ask: Callable[[], Awaitable[ToolOutcome]]
    ) -> ToolOutcome:
        began = self._recording.elapsed_s()
        try:
            outcome = await ask()
        except asyncio.CancelledError:
            self._record_run(provider, run, began)
            raise
        self._record_run(provider, replace(run, outcome=redact_outcome(outcome, tuple(self._recording.secrets))), began)
        return outcome

    def _record_run(self, provider: str, run: CapturedToolRun, began: float) -> None:
        took = round(self._recording.elapsed_s() - began, 6)
        self.note(provider, TOOL_RUN, replace(run, at=began, duration_s=took))

    def note(self, source: Source, kind: LookupKind[T], answer: T) -> T:
        """Note an answer, and return it."""
        if kind.skips_empty and not answer:
            return answer
        if kind.measure is None or self._recording.memory.reserve(*kind.measure(answer)):
            self._note(source, kind, lambda: {"value": kind.write(answer)})
        return answer

    def record_refusal(self, source: Source, kind: LookupKind[T], failure: Failure) -> None:
        self._note(source, kind, lambda: {"refused": msgspec.to_builtins(failure)})

    def record_state(self, state: StoredCall) -> None:
        """Note what a call refers to in the server's state."""
        if self._recording.memory.reserve(state.size, "stored items"):
            self.note(NO_PROVIDER, STATE, state.record())

    @contextmanager
    def _record_refusals(self, source: Source, kind: LookupKind[T]) -> Iterator[None]:
        try:
            yield
        except RequestError as error:
            self.record_refusal(source, kind, error.failure)
            raise
        except ConfigError as error:
            problems = [problem.message for problem in error.problems]
            self._note(source, kind, lambda: {"misconfigured": problems})
            raise

    def _note(self, source: Source, kind: LookupKind[T], value: Callable[[], Json]) -> None:
        if isinstance(source, Provider):
            self._recording.record_provider(source)
        self._recording.record_lookup(name_source(source), kind.name, value)


class ReplayingLookups:
    """Answers with what the captured request looked up, in order; the last answer of each lookup holds for later ones.

    It also has the clock and the ids of the replay: the time of the capture, and ids that are counted.
    """

    def __init__(self, capture: Capture) -> None:
        self._values: dict[tuple[str, str], deque[Json]] = defaultdict(deque)
        for lookup in capture.lookups:
            self._values[lookup.provider, lookup.name].append(lookup.value)
        self._started_at = int(capture.started_at)
        self._ids = itertools.count(1)

    def wrap(self, source: Source, kind: LookupKind[T], ask: Callable[P, T]) -> Callable[P, T]:
        def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            has_answer = not kind.is_optional or self.has(source, kind)
            return self._read_next(source, kind) if has_answer else ask(*args, **kwargs)

        return answer

    def wrap_async(self, source: Source, kind: LookupKind[T], ask: Callable[P, Awaitable[T]]) -> AsyncFunction[P, T]:
        async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            has_answer = not kind.is_optional or self.has(source, kind)
            return self._read_next(source, kind) if has_answer else await ask(*args, **kwargs)

        return answer

    async def run_tool(
        self, provider: str, run: CapturedToolRun, ask: Callable[[], Awaitable[ToolOutcome]]
    ) -> ToolOutcome:
        recorded = self._values[provider, TOOL_RUN.name.value]
        for index, value in enumerate(recorded):
            found = TOOL_RUN.read(_unwrap(value, provider))
            if (found.tool, found.input) == (run.tool, run.input):
                del recorded[index]
                return await _repeat(found)
        message = f"The capture has no run of {run.tool} with the input {run.input!r}."
        return ToolFailure(ToolErrorCode.UNAVAILABLE, message)

    def has(self, source: Source, kind: LookupKind[T]) -> bool:
        return bool(self._values[name_source(source), kind.name.value])

    def now(self) -> float:
        return self._started_at + asyncio.get_running_loop().time()

    def new_id(self, prefix: str) -> str:
        return f"{prefix}{next(self._ids):024x}"

    def _read_next(self, source: Source, kind: LookupKind[T]) -> T:
        """Return the next answer; raises RequestError or ConfigError as the captured lookup did."""
        name = name_source(source)
        values = self._values[name, kind.name.value]
        if not values:
            where = f"provider {name!r}" if name else "its surroundings"
            message = f"This version looks up {kind.name.value!r} in {where}, which the capture does not contain."
            raise RequestError(Failure(Kind.BUG, message))
        return kind.read(_unwrap(values.popleft() if len(values) > 1 else values[0], name))


def _unwrap(value: Json, provider: str) -> Json:
    assert isinstance(value, dict)
    if "refused" in value:
        raise RequestError(msgspec.convert(value["refused"], Failure))
    if "misconfigured" in value:
        raise ConfigError([Problem("configuration", None, provider, str(why)) for why in value["misconfigured"]])
    return value["value"]


async def _repeat(run: CapturedToolRun) -> ToolOutcome:
    if run.outcome is None:
        await asyncio.get_running_loop().create_future()  # never done: it is given up again
    assert run.outcome is not None
    await asyncio.sleep(run.duration_s)
    return run.outcome


def name_source(source: Source) -> str:
    """Return the name in captures: a provider's, with the index of its credential if it has several."""
    if isinstance(source, str):
        return source
    return source.name if source.account.pool is None else f"{source.name}#{source.account.slot}"


def look_up_through(runtime: Runtime, lookups: Lookups) -> Runtime:
    """Return a runtime in which everything that a call looks up is asked of the port."""
    catalogues, fetcher = runtime.catalogues.items(), runtime.fetcher
    return replace(
        runtime,
        providers={name: _ask_for_provider(provider, lookups) for name, provider in runtime.providers.items()},
        catalogues={name: LookedUpCatalogue(catalogue, name, lookups) for name, catalogue in catalogues},
        fetcher=None if fetcher is None else LookedUpFetcher(fetcher, lookups),
        tool_plans={name: _ask_for_tools(plan, name, lookups) for name, plan in runtime.tool_plans.items()},
        targets={},  # found again, so that what finding them takes is looked up
        settings={},  # they refer to what is replaced here
    )


def _ask_for_provider(provider: Provider, lookups: Lookups) -> Provider:
    """Ask for what a provider knows, for the choice among its credentials, and for each of them."""
    account, chooser = provider.account, None
    if account.pool is not None:
        chooser = LookedUpChooser(account.chooser or account.pool, provider.name, lookups)
    return replace(
        _ask_for_member(provider, lookups),
        account=replace(account, chooser=chooser),
        members=tuple(_ask_for_member(member, lookups) for member in provider.members),
    )


def _ask_for_member(provider: Provider, lookups: Lookups) -> Provider:
    endpoint, auth, catalogue, requests = provider.endpoint, provider.auth, provider.catalogue, provider.requests
    protocols, address, renew = endpoint.find_protocols, endpoint.find_address, auth.renew
    options: LookupKind[object] = replace(OPTIONS, parse=partial(_read_options, provider))
    retry_after = lookups.wrap(provider, RETRY_AFTER, lambda failure: failure.retry_after)

    def interpret_failure(failure: Failure) -> Failure:
        """Look up only when to retry, which depends on the clock."""
        interpreted = provider.replies.interpret_failure(failure)
        return replace(interpreted, retry_after=retry_after(interpreted))

    return replace(
        provider,
        endpoint=replace(
            endpoint,
            find_protocols=None if protocols is None else lookups.wrap_async(provider, PROTOCOL_NAMES, protocols),
            find_address=None if address is None else lookups.wrap_async(provider, ADDRESS, address),
        ),
        auth=replace(
            auth,
            authorize=lookups.wrap_async(provider, AUTHORIZE, auth.authorize),
            renew=None if renew is None else lookups.wrap_async(provider, RENEW, renew),
        ),
        # Looked up once for each model.
        catalogue=replace(
            catalogue, context_window=cache(lookups.wrap(provider, CONTEXT_WINDOW, catalogue.context_window))
        ),
        requests=replace(requests, options=lookups.wrap_async(provider, options, requests.options)),
        replies=replace(provider.replies, interpret_failure=interpret_failure),
    )


def _ask_for_tools(plan: ToolPlan, provider: str, lookups: Lookups) -> ToolPlan:
    search, page, describe, instead = plan.search, plan.fetch, plan.describe_search, plan.beside_functions
    return replace(
        plan,
        search=None if search is None else LookedUpSearch(search, provider, lookups),
        fetch=None if page is None else LookedUpFetch(page, provider, lookups),
        describe_search=None if describe is None else lookups.wrap_async(provider, TOOL_TEXT, describe),
        beside_functions=None if instead is None else _ask_for_tools(instead, provider, lookups),
    )


class LookedUpCatalogue:
    """A model catalogue; what it says about single models is looked up."""

    def __init__(self, catalogue: ModelCatalogue, provider: str, lookups: Lookups) -> None:
        self._catalogue = catalogue
        self.list_known, self.wait_for_list = catalogue.list_known, catalogue.wait_for_list
        self.max_output = lookups.wrap(provider, MAX_OUTPUT, catalogue.max_output)
        self.list_problem = lookups.wrap(provider, LIST_PROBLEM, catalogue.list_problem)

    @property
    def complete(self) -> bool:
        return self._catalogue.complete


class LookedUpChooser:
    def __init__(self, chooser: CredentialChooser, provider: str, lookups: Lookups) -> None:
        self.choose = lookups.wrap(provider, CREDENTIAL, chooser.choose)
        self.find_soonest_free = lookups.wrap(provider, SOONEST_CREDENTIAL, chooser.find_soonest_free)


class LookedUpFetcher:
    def __init__(self, fetcher: MediaFetcher, lookups: Lookups) -> None:
        self.fetch_all = lookups.wrap_async(NO_PROVIDER, MEDIA, fetcher.fetch_all)


def look_up_memories(memories: Memories, lookups: Lookups) -> Memories:
    return Memories(
        LookedUpLostCalls(memories.lost_calls, lookups),
        LookedUpPrompts(memories.prompts, lookups),
        LookedUpReasoning(memories.reasoning, lookups),
    )


class LookedUpLostCalls:
    """A memory of cut calls; what it recalls is looked up."""

    def __init__(self, memory: LostCallMemory, lookups: Lookups) -> None:
        self.remember = memory.remember
        self.recall = lookups.wrap_async(NO_PROVIDER, CUT_CALLS, memory.recall)


class LookedUpPrompts:
    """A memory of prompts; what it recalls is looked up."""

    def __init__(self, memory: PromptMemory, lookups: Lookups) -> None:
        self._memory = memory
        self._lookups = lookups
        self.record = memory.record

    async def recall(self, id: SessionId, at: float) -> SessionMemory | None:
        return await self._lookups.wrap_async(id.provider, PROMPTS, self._memory.recall)(id, at)


class _Everything:
    def __contains__(self, _: object) -> bool:
        return True


class LookedUpReasoning:
    """A memory of rejected reasoning; what it recalls is looked up, at most once for each provider of a call."""

    known = _Everything()  # what is recalled stands in every capture, and a replay takes it from there

    def __init__(self, memory: ReasoningMemory, lookups: Lookups) -> None:
        self._memory = memory
        self._lookups = lookups
        self.record = memory.record

    async def recall(self, tenant: str, provider: str, name: NameSession) -> bytes:
        return await self._lookups.wrap_async(provider, REASONING, self._memory.recall)(tenant, provider, name)


class LookedUpSearch:
    def __init__(self, backend: SearchBackend, provider: str, lookups: Lookups) -> None:
        self.name = backend.name
        self._backend = backend
        self._run = partial(lookups.run_tool, provider)

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        run = CapturedToolRun(SEARCH, self.name, query.text, None, 0.0, 0.0)
        outcome = await self._run(run, lambda: self._backend.search(query, timeout_s))
        assert not isinstance(outcome, WebPage)
        return outcome


class LookedUpFetch:
    def __init__(self, backend: FetchBackend, provider: str, lookups: Lookups) -> None:
        self.name = backend.name
        self._backend = backend
        self._run = partial(lookups.run_tool, provider)

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        run = CapturedToolRun(FETCH, self.name, url, None, 0.0, 0.0)
        outcome = await self._run(run, lambda: fetch(self._backend, url, domains))  # with the time at which it was
        assert not isinstance(outcome, SearchFound)
        return outcome

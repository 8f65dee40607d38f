"""Everything that a call looks up has one port: what a recording notes of a live answer, a replay answers again."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from typing import get_args, get_type_hints

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.problems import ConfigError, Problem
from dragoman.config.settings import Tools
from dragoman.net.headers import Header
from dragoman.proxy.capture.format import NO_PROVIDER, CapturedToolRun, Lookup, LookupName
from dragoman.proxy.capture.lookups import (
    CREDENTIAL,
    RENEW,
    STATE,
    LookedUpLostCalls,
    LookedUpPrompts,
    LookedUpReasoning,
    Lookups,
    RecordingLookups,
    ReplayingLookups,
    look_up_through,
    name_source,
)
from dragoman.proxy.capture.recording import Recording
from dragoman.proxy.ports import LostCallMemory, NameSession, PromptMemory, ReasoningMemory
from dragoman.proxy.runtime import Runtime
from dragoman.proxy.steps.restore_state import ReplayedState
from dragoman.server_tools.addresses import DomainRules
from dragoman.server_tools.backends import ChosenBackends, McpServers, ToolPlan, make_plan
from dragoman.server_tools.web_search import SearchQuery
from dragoman.state.context import Context, ContextItem
from dragoman.state.lost_calls import FindDigests, LostCall, LostCalls
from dragoman.state.stored_call import ParsedBody, StoredCall, Terms
from dragoman.store.response_rows import ItemRow
from dragoman.translate.caching.memory import SessionId
from dragoman.translate.caching.rejected_reasoning import ReasoningSession
from dragoman.translate.hub.caching import SentPrompt, SessionMemory
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.request import Inline, Json
from dragoman.translate.hub.server_tools import (
    FetchOutcome,
    SearchFound,
    SearchOutcome,
    SearchResult,
    ToolFailure,
    ToolOutcome,
    ToolText,
    WebPage,
)
from dragoman.translate.protocols.kiro.wire import KiroOptions
from dragoman.upstreams.credentials.pool import CredentialChoice
from dragoman.upstreams.provider import (
    Account,
    Address,
    Auth,
    Catalogue,
    Endpoint,
    ModelInfo,
    Provider,
    ReplyRules,
    RequestRules,
    UnsignedRequest,
)
from narrowing import present
from proxy.capture.recordings import look_up, make_recording, make_replaying
from proxy.in_memory import NOW, URL, make_call, make_pooled, make_provider, make_world, send_nothing

UNSIGNED = UnsignedRequest("chat", "POST", URL, ((b"x", b"y"),), body=b"{}")
PICTURE = "https://example.com/cat.png"
CAT = Inline("image/png", "aGVsbG8=")
FOUND = SearchFound((SearchResult("https://a.example/", "One", "the text"),))
LOST = (LostCall("search", '{"q":'),)
TEXT = ToolText("Finds pages.", "A query.")
OPTIONS = KiroOptions("arn:profile")
MODEL = ModelInfo("m", max_output=9)
SESSION = SessionId("t", "s", "up", 0, "m")


class World:
    """Functions that answer, or that fail because nothing may ask them: those behind a replay."""

    name = "index"

    def __init__(self, *, answers: bool = True) -> None:
        self._answers = answers
        self.complete = True

    async def find_protocols(self, model: str) -> tuple[str, ...]:
        assert self._answers
        return ("kiro",)

    async def find_address(self, path: str) -> Address:
        assert self._answers
        return Address(f"https://moved.example{path}", ((b"x-target", b"Chat"),))

    async def authorize(self, request: UnsignedRequest) -> tuple[Header, ...]:
        assert self._answers
        return ((b"authorization", b"Bearer sk-0123456789"),)

    async def renew(self) -> bool:
        assert self._answers
        return True

    async def options(self, model: str) -> object:
        assert self._answers
        return OPTIONS

    def context_window(self, model: str) -> int | None:
        assert self._answers
        return {"m": 1000}.get(model, 2000)

    def interpret_failure(self, failure: Failure) -> Failure:
        return replace(failure, message="slow down", retry_after=7.0 if self._answers else None)

    def list_known(self) -> tuple[ModelInfo, ...]:
        return (MODEL,)

    async def wait_for_list(self, at_most_s: float = 0.0) -> tuple[ModelInfo, ...]:
        return (MODEL,)

    def max_output(self, model: str) -> int | None:
        assert self._answers
        return 9

    def list_problem(self) -> str:
        assert self._answers
        return "HTTP 500"

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        assert self._answers
        return {PICTURE: CAT}

    async def describe(self, is_first_round: bool) -> ToolText | None:
        assert self._answers
        return TEXT

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        assert self._answers
        if query.text == "forever":
            await asyncio.get_running_loop().create_future()
        return FOUND

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        assert self._answers
        return WebPage(url, "One", "Text")

    def choose(self, session: str | None, model: str, tried: Collection[int], now: float) -> CredentialChoice | None:
        assert self._answers
        return CredentialChoice(1)

    def find_soonest_free(self, model: str, now: float) -> int:
        assert self._answers
        return 1

    async def remember(self, tenant: str, digest: bytes, lost: tuple[LostCall, ...]) -> None:
        return

    async def recall(self, tenant: str, find_digests: FindDigests) -> tuple[LostCall, ...]:
        assert self._answers
        return LOST


class Prompts:
    """A memory of prompts that answers, or that nothing may ask."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers

    async def recall(self, id: SessionId, at: float) -> SessionMemory | None:
        assert self._answers
        return SessionMemory((b"12345678",), strays=1)

    def record(self, id: SessionId, sent: SentPrompt, at: float) -> None:
        return


class RejectedValues:
    """A memory of rejected reasoning that answers, or that nothing may ask."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers

    @property
    def known(self) -> Container[tuple[str, str]]:
        raise AssertionError("only what is looked up is asked")

    async def recall(self, tenant: str, provider: str, name: NameSession) -> bytes:
        assert self._answers
        return b"12345678"

    def record(self, id: ReasoningSession, digests: bytes) -> None:
        return


async def name_no_session() -> str | None:
    return None


async def find_digests() -> tuple[bytes, ...]:
    return (b"digest",)


async def find_other_digests() -> tuple[bytes, ...]:
    return (b"other",)


class Surroundings(Struct, frozen=True):
    runtime: Runtime
    memory: LostCallMemory
    prompts: PromptMemory
    reasoning: ReasoningMemory

    @property
    def up(self) -> Provider:
        return self.runtime.providers["up"]

    @property
    def plan(self) -> ToolPlan:
        return self.runtime.tool_plans["up"]


def make_surroundings(*, answers: bool = True) -> Surroundings:
    world = World(answers=answers)
    endpoint = Endpoint(
        URL, ("kiro",), send_nothing, find_protocols=world.find_protocols, find_address=world.find_address
    )
    provider = make_provider(
        "up",
        endpoint=endpoint,
        auth=Auth(world.authorize, renew=world.renew),
        catalogue=Catalogue(context_window=world.context_window),
        requests=RequestRules(options=world.options),
        replies=ReplyRules(interpret_failure=world.interpret_failure),
    )
    plan = make_plan(ChosenBackends(world, world, McpServers(), (b"sk-canary-1234",)), frozenset(), Tools())
    pooled = make_pooled(make_provider("pooled"), 2)
    runtime = replace(
        make_world(provider, replace(pooled, account=replace(pooled.account, chooser=world))),
        catalogues={"up": world},
        fetcher=world,
        tool_plans={"up": replace(plan, describe_search=world.describe)},
    )
    return Surroundings(runtime, world, Prompts(answers=answers), RejectedValues(answers=answers))


def look_up_all(real: Surroundings, lookups: Lookups) -> Surroundings:
    memory, prompts = LookedUpLostCalls(real.memory, lookups), LookedUpPrompts(real.prompts, lookups)
    reasoning = LookedUpReasoning(real.reasoning, lookups)
    return Surroundings(look_up_through(real.runtime, lookups), memory, prompts, reasoning)


async def search(around: Surroundings) -> object:
    return await present(around.plan.search).search(SearchQuery("bears", 3), 1.0)


async def choose(around: Surroundings) -> object:
    return present(around.runtime.providers["pooled"].account.chooser).choose(None, "m", (), NOW)


async def find_soonest_free(around: Surroundings) -> object:
    return present(around.runtime.providers["pooled"].account.chooser).find_soonest_free("m", NOW)


async def find_window(around: Surroundings) -> object:
    return around.up.catalogue.context_window("m")


async def find_max_output(around: Surroundings) -> object:
    return around.runtime.catalogues["up"].max_output("m")


async def find_list_problem(around: Surroundings) -> object:
    return around.runtime.catalogues["up"].list_problem()


async def interpret(around: Surroundings) -> object:
    return around.up.replies.interpret_failure(Failure(Kind.RATE_LIMITED, "slow"))


ASK: dict[LookupName, Callable[[Surroundings], Awaitable[object]]] = {
    LookupName.AUTHORIZE: lambda around: around.up.auth.authorize(UNSIGNED),
    LookupName.ADDRESS: lambda around: present(around.up.endpoint.find_address)("/chat"),
    LookupName.RENEW: lambda around: present(around.up.auth.renew)(),
    LookupName.PROTOCOLS: lambda around: around.up.protocols_for("m"),
    LookupName.OPTIONS: lambda around: around.up.requests.options("m"),
    LookupName.CONTEXT_WINDOW: find_window,
    LookupName.MAX_OUTPUT: find_max_output,
    LookupName.LIST_PROBLEM: find_list_problem,
    LookupName.RETRY_AFTER: interpret,
    LookupName.CREDENTIAL: choose,
    LookupName.SOONEST_CREDENTIAL: find_soonest_free,
    LookupName.MEDIA: lambda around: present(around.runtime.fetcher).fetch_all([PICTURE]),
    LookupName.CUT_CALLS: lambda around: around.memory.recall("t", find_digests),
    LookupName.PROMPTS: lambda around: around.prompts.recall(SESSION, NOW),
    LookupName.REASONING: lambda around: around.reasoning.recall("t", "up", name_no_session),
    LookupName.TOOL_RUN: search,
    LookupName.TOOL_TEXT: lambda around: present(around.plan.describe_search)(True),
}
OF_STATE = {LookupName.STATE, LookupName.NOT_STORED}  # restored as a whole: see below


def replay(recording: Recording) -> ReplayingLookups:
    return ReplayingLookups(recording.make_capture())


def test_every_kind_of_lookup_is_tested_here() -> None:
    assert {*ASK, *OF_STATE} == set(LookupName)


@pytest.mark.parametrize("name", ASK)
async def test_a_live_answer_is_noted_once_and_given_again_in_a_replay(name: LookupName) -> None:
    ask, live, recording = ASK[name], make_surroundings(), make_recording()
    recorded = await ask(look_up_all(live, RecordingLookups(recording)))
    assert recorded == await ask(live)
    assert [lookup.name for lookup in recording.lookups] == [name.value]
    replayed = look_up_all(make_surroundings(answers=False), replay(recording))
    assert await ask(replayed) == recorded


@pytest.mark.parametrize("stored", [True, False])
async def test_the_state_of_a_call_is_the_same_in_a_replay(stored: bool) -> None:
    body = b'{"model":"m","input":"Hi"}'
    item: dict[str, Json] = {"type": "message", "role": "user", "content": "Hi"}
    row = ItemRow(b"", "", b"")
    context = Context((ContextItem(item, row),), (ContextItem(item, None), ContextItem(item, row)), "resp_1", None)
    state = StoredCall(None, Terms("t", keeps=True, retention_s=9, why_not="full"), ParsedBody({}, len(body)), context)
    recording = make_recording()
    RecordingLookups(recording).record_state(state)
    if not stored:
        recording.record_lookup(NO_PROVIDER, LookupName.NOT_STORED, lambda: {"value": True})
    restored = present(await ReplayedState(replay(recording)).open(make_call("responses", body)))
    assert restored.record() == state.record()
    assert restored.committed is (None if stored else False)


async def test_a_capture_without_state_has_none_and_a_refusal_is_repeated() -> None:
    call, recording = make_call("responses", b'{"model":"m","input":"Hi"}'), make_recording()
    assert await ReplayedState(replay(recording)).open(call) is None
    RecordingLookups(recording).record_refusal(NO_PROVIDER, STATE, Failure(Kind.NOT_FOUND, "there is no such response"))
    with pytest.raises(RequestError, match="no such response"):
        await ReplayedState(replay(recording)).open(call)


def list_async_functions(record: type[Struct]) -> set[str]:
    """Return the fields of a record that hold functions which take time."""

    def takes_time(kind: object) -> bool:
        return any("Awaitable" in str(part) for part in (kind, *get_args(kind)))

    return {f"{record.__name__}.{name}" for name, kind in get_type_hints(record).items() if takes_time(kind)}


# Not for calls: lists of models, and what `doctor` and `usage` show. `send` is recorded as such.
OUTSIDE_CALLS = {"Catalogue.list_models", "Account.inspect", "Account.read_quotas"}


def test_every_function_of_a_provider_that_takes_time_goes_through_the_port() -> None:
    records: list[type[Struct]] = [Endpoint, Auth, Catalogue, RequestRules, ReplyRules, Account]
    found = {name for record in records for name in list_async_functions(record)} - OUTSIDE_CALLS
    real = make_surroundings()
    wrapped = look_up_all(real, RecordingLookups(make_recording())).up
    changed = {
        f"{type(part).__name__}.{name}"
        for part, before in (
            (wrapped.endpoint, real.up.endpoint),
            (wrapped.auth, real.up.auth),
            (wrapped.requests, real.up.requests),
        )
        for name, value in msgspec.structs.asdict(part).items()
        if value is not msgspec.structs.asdict(before)[name]
    }
    assert found
    assert found <= changed


def test_what_a_provider_does_not_have_is_not_looked_up_either() -> None:
    provider = look_up_through(make_world(make_provider()), RecordingLookups(make_recording())).providers["up"]
    endpoint, auth = provider.endpoint, provider.auth
    assert (endpoint.find_protocols, endpoint.find_address, auth.renew) == (None, None, None)


def test_lookups_are_noted_under_the_name_of_the_credential() -> None:
    provider = make_provider("up")
    assert (name_source(provider), name_source("other")) == ("up", "other")
    assert [name_source(member) for member in make_pooled(provider, 2).members] == ["up#0", "up#1"]


async def test_values_in_captures_keep_their_form() -> None:
    recording = make_recording()
    around = look_up_all(make_surroundings(), RecordingLookups(recording))
    for ask in ASK.values():
        await ask(around)
    expected: dict[LookupName, object] = {
        LookupName.PROTOCOLS: ["kiro"],
        LookupName.ADDRESS: {"url": "https://moved.example/chat", "headers": [["x-target", "Chat"]]},
        LookupName.AUTHORIZE: [["authorization", "Bearer sk-0123456789"]],
        LookupName.RENEW: True,
        LookupName.RETRY_AFTER: 7.0,
        LookupName.CONTEXT_WINDOW: 1000,
        LookupName.MAX_OUTPUT: 9,
        LookupName.LIST_PROBLEM: "HTTP 500",
    }
    for name, value in expected.items():
        [noted] = look_up(recording, "up", name)
        assert msgspec.json.encode(noted) == msgspec.json.encode({"value": value})
    assert look_up(recording, "pooled", LookupName.CREDENTIAL) == [{"value": 1}]
    assert look_up(recording, NO_PROVIDER, LookupName.MEDIA) == [{"value": {PICTURE: msgspec.to_builtins(CAT)}}]


async def test_refusals_are_noted_and_raised_again() -> None:
    async def refuse(request: UnsignedRequest) -> tuple[Header, ...]:
        if request.protocol == "chat":
            raise RequestError(Failure(Kind.CREDENTIAL, "signed out"))
        raise ConfigError([Problem("configuration", None, "api_key", "it is empty")])

    recording, runtime = make_recording(), make_world(make_provider(auth=Auth(refuse)))
    for lookups in (RecordingLookups(recording), None):
        around = look_up_through(runtime, lookups or replay(recording))
        with pytest.raises(RequestError, match="signed out"):
            await around.providers["up"].auth.authorize(UNSIGNED)
        with pytest.raises(ConfigError, match="it is empty"):
            await around.providers["up"].auth.authorize(replace(UNSIGNED, protocol="messages"))
    refused, misconfigured = look_up(recording, "up", LookupName.AUTHORIZE)
    assert "signed out" in str(refused)
    assert misconfigured == {"misconfigured": ["it is empty"]}


async def test_a_window_is_looked_up_once_for_each_model() -> None:
    recording = make_recording()
    for lookups in (RecordingLookups(recording), None):
        around = look_up_all(make_surroundings(answers=lookups is not None), lookups or replay(recording))
        windows = [around.up.catalogue.context_window(model) for model in ("m", "m", "n", "m")]
        assert windows == [1000, 1000, 2000, 1000]
    assert len(look_up(recording, "up", LookupName.CONTEXT_WINDOW)) == 2


def test_a_list_of_models_without_a_problem_is_not_noted() -> None:
    recording = make_recording()
    runtime = look_up_through(
        make_world(make_provider(catalogue=Catalogue(has_list=False))), RecordingLookups(recording)
    )
    assert runtime.catalogues["up"].list_problem() == ""
    assert recording.lookups == []


def test_the_choice_of_no_credential_is_noted_and_the_probes_of_another_are_kept() -> None:
    recording = make_recording()
    choices = iter([CredentialChoice(1), None])
    choose = RecordingLookups(recording).wrap("up", CREDENTIAL, lambda: next(choices))
    assert (choose(), choose()) == (CredentialChoice(1), None)
    assert look_up(recording, "up", LookupName.CREDENTIAL) == [{"value": 1}, {"value": None}]
    replayed = replay(recording).wrap("up", CREDENTIAL, lambda: None)
    assert (replayed(), replayed()) == (CredentialChoice(1), None)


async def test_media_that_do_not_fit_into_the_recording_are_left_out() -> None:
    recording = make_recording(room=1)
    around = look_up_all(make_surroundings(), RecordingLookups(recording))
    assert await present(around.runtime.fetcher).fetch_all([PICTURE]) == {PICTURE: CAT}
    assert look_up(recording, NO_PROVIDER, LookupName.MEDIA) == []
    assert "fetched media" in recording.make_capture().truncated


async def test_what_is_remembered_is_passed_on() -> None:
    memory = LostCalls(None)
    recorder = LookedUpLostCalls(memory, RecordingLookups(make_recording()))
    await recorder.remember("t", b"digest", LOST)
    assert await memory.recall("t", find_digests) == LOST
    assert await recorder.recall("t", find_other_digests) == ()


def renewals(*values: dict[str, object]) -> Callable[[], bool]:
    lookups = make_replaying(*(Lookup("up", LookupName.RENEW.value, value) for value in values))
    return lookups.wrap("up", RENEW, lambda: False)


def test_values_are_returned_in_order_and_the_last_one_again() -> None:
    renew = renewals({"value": True}, {"value": False})
    assert [renew() for _ in range(3)] == [True, False, False]


def test_a_lookup_that_the_capture_lacks_is_an_error_unless_older_captures_lack_it() -> None:
    with pytest.raises(RequestError, match="does not contain"):
        renewals()()
    runtime = look_up_through(make_world(make_provider()), make_replaying())
    assert runtime.providers["up"].catalogue.context_window("m") is None
    assert runtime.catalogues["up"].max_output("m") is None


def test_the_ids_of_a_replay_are_counted() -> None:
    lookups = make_replaying()
    assert [lookups.new_id("a_"), lookups.new_id("b_")] == [f"a_{1:024x}", f"b_{2:024x}"]


async def test_a_page_is_noted_with_its_time_and_the_service_that_had_it() -> None:
    recording = make_recording()
    around = look_up_all(make_surroundings(), RecordingLookups(recording))
    page = await present(around.plan.fetch).fetch("https://a.example/", DomainRules())
    assert isinstance(page, WebPage)
    [noted] = look_up(recording, "up", LookupName.TOOL_RUN)
    assert isinstance(noted, dict)
    run = msgspec.convert(noted["value"], CapturedToolRun)
    assert (run.tool, run.backend, run.input, run.outcome) == ("web_fetch", "index", "https://a.example/", page)
    assert page.retrieved_at


async def test_runs_are_noted_without_secrets() -> None:
    recording = make_recording()
    recording.secrets.add(b"the text")
    await search(look_up_all(make_surroundings(), RecordingLookups(recording)))
    [noted] = look_up(recording, "up", LookupName.TOOL_RUN)
    assert "the text" not in str(noted)


async def test_a_run_that_is_given_up_is_noted_without_an_outcome_and_never_ends_in_a_replay() -> None:
    recording = make_recording()
    for lookups in (RecordingLookups(recording), None):
        around = look_up_all(make_surroundings(), lookups or replay(recording))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await present(around.plan.search).search(SearchQuery("forever", 3), 1.0)
    [noted] = look_up(recording, "up", LookupName.TOOL_RUN)
    assert isinstance(noted, dict)
    assert noted["value"]["outcome"] is None


async def test_a_run_is_found_by_its_input_and_used_once() -> None:
    def record(given: str, outcome: ToolOutcome) -> Lookup:
        run = CapturedToolRun("web_search", "index", given, outcome, 0.0, 0.01)
        return Lookup("up", LookupName.TOOL_RUN.value, {"value": msgspec.to_builtins(run)})

    first, second = (SearchFound((SearchResult(f"https://{name}.example/", name),)) for name in "ab")
    lookups = make_replaying(record("a", first), record("b", second))
    backend = present(look_up_all(make_surroundings(answers=False), lookups).plan.search)
    assert await backend.search(SearchQuery("b", 3), 1.0) == second
    assert await backend.search(SearchQuery("a", 3), 1.0) == first
    assert isinstance(await backend.search(SearchQuery("a", 3), 1.0), ToolFailure)

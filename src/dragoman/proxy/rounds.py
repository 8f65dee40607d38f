"""The further rounds of one reply: run the server tools that the model has called, or continue after a vendor's pause.

The model goes on with the results of its tools. Of vendors that pause, some need the reply so far in the next request;
others give a token, with which the same request gets the rest. Clients see one reply, without pauses.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.body_threads import run_off_loop
from dragoman.net.errors import describe_fault
from dragoman.net.tasks import spawn
from dragoman.proxy.accounts import reserve_turn
from dragoman.proxy.between_turns import CallScope, Then
from dragoman.proxy.call import Call
from dragoman.proxy.outcome import CANCELLED, OK, ToolRun
from dragoman.proxy.prepared import Translated
from dragoman.proxy.request_record import Awaited
from dragoman.server_tools.addresses import AddressOrigin, DomainRules, ShownText, find_fetchable, list_shown
from dragoman.server_tools.tool_results import redact_outcome
from dragoman.server_tools.web_fetch import fetch
from dragoman.server_tools.web_search import SearchQuery, search
from dragoman.translate.framing.known_secrets import SecretForms, list_secrets
from dragoman.translate.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    HostedBlock,
    Opened,
    Stop,
    ToolReturned,
)
from dragoman.translate.hub.request import Hosted, Part, Request, Text, ToolResult
from dragoman.translate.hub.server_tools import (
    FETCH,
    SEARCH,
    CallPlace,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
    WebPage,
)
from dragoman.translate.hub.usage import Usage
from dragoman.translate.passes.server_tools import (
    ServerTools,
    add_round,
    find_places,
    read_arguments,
    relax_choice,
    select_shown,
    withdraw_server_tools,
    write_result,
)
from dragoman.translate.stages.hold_end import HoldContinuation, HoldPause, HoldServerCalls, ServerCall

if TYPE_CHECKING:  # it imports this module
    from dragoman.proxy.replies.translated import TranslatedReply

log = logging.getLogger(__name__)

AT_ONCE = 4
CHARACTERS_PER_TOKEN = 4

T = TypeVar("T", bound=ToolOutcome)
MAX_PAUSES = 5
MAX_CONTINUATIONS = 16


class Rounds:
    """The rounds of one reply so far: what the model returned, which tools ran, and what they returned."""

    def __init__(self) -> None:
        self._history: list[tuple[list[Event], Mapping[str, Part]]] = []
        self._output_tokens = 0
        self._is_spent = False
        self.uses = {SEARCH: 0, FETCH: 0}
        self.shown: list[ShownText] = []  # what tools have returned in this reply
        self.results: dict[str, ToolResult] = {}  # by id, of uses that the client's history left without a result
        self._token: str | None = None  # with which the upstream continues
        self.continuations = 0  # how often it has continued

    @property
    def number(self) -> int:
        """Return the number of the round that is being run."""
        return len(self._history)

    @property
    def pauses(self) -> int:
        """Return how often the upstream has paused."""
        return sum(not results for _, results in self._history)

    def add(self, events: list[Event], results: Mapping[str, Part], output_tokens: int) -> None:
        self._history.append((events, results))
        self._output_tokens += output_tokens

    def continue_with(self, token: str) -> None:
        """Send the same request again, with this token: its reply is the rest of the one so far."""
        self._token = token
        self.continuations += 1

    def spend(self) -> None:
        """Note that no more calls are allowed: the next round is offered none."""
        self._is_spent = True

    def extend(self, request: Request, tools: ServerTools | None) -> Request:
        """Return the request of the next round."""
        for events, results in self._history:
            request = add_round(request, events, results)
        if self._history:
            request = relax_choice(request)
        if self._is_spent and tools is not None:
            request = withdraw_server_tools(request, tools)
        if self._token is not None:
            request = replace(request, vendor=replace(request.vendor, continuation=self._token))
        if request.max_tokens is None:
            return request
        return replace(request, max_tokens=max(1, request.max_tokens - self._output_tokens))


def end_at_limit(call: Call, reply: "TranslatedReply") -> Then:
    """End a reply for which no further upstream request may be paid, as at its token limit."""
    call.record.awaits = None
    reply.end_with(Ended(Stop.LENGTH))
    return Then.FINISH


class ToolsCalled(Struct, frozen=True):
    """The upstream has ended its turn, and the model has called tools that the gateway runs."""

    prepared: Translated
    reply: "TranslatedReply"
    hold: HoldServerCalls
    output_tokens: int
    is_earlier: bool = False  # the calls stand in the client's history; no upstream request was sent yet


def find_server_calls(prepared: Translated, reply: "TranslatedReply") -> ToolsCalled | None:
    hold = reply.find_stage(HoldServerCalls)
    if hold is None or hold.end is None:
        return None
    return ToolsCalled(prepared, reply, hold, reply.used_so_far().output)


def call_unrun_uses(prepared: Translated, reply: "TranslatedReply") -> ToolsCalled:
    """Return the calls that the client's history left without a result, as if the model had just made them."""
    tools = prepared.offered.tools
    assert tools is not None
    names = tools.names
    hold = HoldServerCalls(tools.kinds)
    for block, use in enumerate(prepared.offered.unrun):
        hold.feed(Opened(block, CallBlock(use.id, names[use.kind])))
        hold.feed(Delta(block, msgspec.json.encode(use.input).decode()))
        hold.feed(Closed(block))
    hold.feed(Ended(Stop.TOOL))
    return ToolsCalled(prepared, reply, hold, 0, is_earlier=True)


class RunTools(Struct, frozen=True):
    """Run the calls at the same time, and write what they did for the client in the order of the calls."""

    called: ToolsCalled
    rounds: Rounds

    async def run(self, scope: CallScope) -> Then:
        called, rounds, call = self.called, self.rounds, scope.call
        prepared, hold = called.prepared, called.hold
        tools, plan = prepared.offered.tools, prepared.offered.plan
        assert tools is not None
        assert plan is not None
        runner = _Runner(prepared, rounds, call)
        plan.servers.acquire()
        scope.at_end.append(plan.servers.release)
        called.reply.wait_for(Awaited.TOOLS)
        results = await self._run_all(runner, tools)
        if hold.calls_client_tool:  # the reply ends here
            assert hold.end is not None
            call.record.awaits = None
            called.reply.end_with(hold.end)
            return Then.FINISH
        shown = sum(len(text.text) for text in rounds.shown)
        if not await reserve_turn(call.lease, called.reply.used_so_far(), shown):
            return end_at_limit(call, called.reply)
        if called.is_earlier:
            rounds.results.update(results)
        else:
            rounds.add(hold.events, results, called.output_tokens)
            call.record.rounds += 1
        return Then.NEXT_ROUND

    async def _run_all(self, runner: "_Runner", tools: ServerTools) -> dict[str, ToolResult]:
        called, rounds = self.called, self.rounds
        hold, reply = called.hold, called.reply
        results: dict[str, ToolResult] = {}
        held = hold.held
        places = {} if called.is_earlier else find_places(hold.events, tools.kinds, rounds.number)
        tasks = {
            item.id: spawn(runner.run(item), name=f"run {item.kind}") for item in held if isinstance(item, ServerCall)
        }
        try:
            for item in held:
                if not isinstance(item, ServerCall):
                    await reply.send_own([item])
                    continue
                block = hold.block_of(item.id)
                await reply.send_own([Opened(block, runner.describe(item, places.get(item.id)))])
                outcome = select_shown(await tasks[item.id], tools.declared[item.kind])
                reply.encoding.sources.add(outcome)
                results[item.id] = runner.write(item, outcome)
                await reply.send_own([ToolReturned(block, outcome), Closed(block)])
        finally:  # the client may have disconnected
            cancelled = [task for task in tasks.values() if task.cancel()]
            if cancelled:
                await asyncio.wait(cancelled)
        return results


class _Runner:
    """Runs the calls of one round."""

    def __init__(self, prepared: Translated, rounds: Rounds, call: Call) -> None:
        tools, plan = prepared.offered.tools, prepared.offered.plan
        assert tools is not None
        assert plan is not None
        self._call = call
        self._secrets = SecretForms((*prepared.secrets, *list_secrets((), plan.secrets)))
        self._reads_documents = prepared.upstream.reads_documents
        self._tools = tools
        self._plan = plan
        self._rounds = rounds
        self._slots = asyncio.Semaphore(AT_ONCE)

    def describe(self, call: ServerCall, place: CallPlace | None) -> HostedBlock:
        """Return the block that a client is shown; without a place, the client has shown the call itself."""
        given = read_arguments(call.arguments)
        return HostedBlock(call.id, call.kind, given, is_ours=True, place=place, is_resumed=place is None)

    def write(self, call: ServerCall, outcome: ToolOutcome) -> ToolResult:
        result = write_result(call.id, outcome, documents=self._reads_documents)
        texts = [part.text for part in result.content if isinstance(part, Text)]
        self._rounds.shown += [ShownText(text, AddressOrigin.SERVER_TOOL, call.kind) for text in texts]
        return result

    async def run(self, call: ServerCall) -> ToolOutcome:
        refusal = self._count_use(call)
        if refusal is not None:
            return refusal
        name = "query" if call.kind == SEARCH else "url"
        value = read_arguments(call.arguments).get(name)
        if not isinstance(value, str) or not value.strip():
            message = f"The call needs the argument {name!r}, a text that is not empty."
            return ToolFailure(ToolErrorCode.INVALID_INPUT, message)
        try:
            async with self._slots:
                outcome = await (self._search(value) if call.kind == SEARCH else self._fetch(value.strip()))
            return redact_outcome(outcome, self._secrets)
        except Exception as fault:  # a tool's failure is a result, and never ends the reply
            log.error("%s failed: %s", call.kind, describe_fault(fault))
            return ToolFailure(ToolErrorCode.UNAVAILABLE, "The tool failed inside the gateway. See its log.")

    def _count_use(self, call: ServerCall) -> ToolFailure | None:
        """Count the call; return the refusal if it is one too many."""
        declared, uses = self._tools.declared[call.kind], self._rounds.uses
        most = min(
            self._plan.search_settings.max_calls,
            math.inf if self._tools.max_calls is None else self._tools.max_calls,
        )
        most_of_kind = math.inf if declared.max_uses is None else declared.max_uses
        if uses[call.kind] < most_of_kind and sum(uses.values()) < most:
            uses[call.kind] += 1
            return None
        self._rounds.spend()
        message = f"No more than {min(most, most_of_kind)} calls are allowed in this reply."
        return ToolFailure(ToolErrorCode.MAX_USES_EXCEEDED, message)

    async def _search(self, text: str) -> ToolOutcome:
        plan, declared = self._plan, self._tools.declared[SEARCH]
        assert plan.search is not None
        settings = plan.search_settings
        query = SearchQuery(text, settings.results, _domains(declared), _country(declared))
        return await self._record_run(SEARCH, plan.search.name, search(plan.search, query, settings.timeout_s))

    async def _fetch(self, url: str) -> ToolOutcome:
        plan, declared = self._plan, self._tools.declared[FETCH]
        assert plan.fetch is not None
        named = await self._find_named(url, declared)
        if named is None:
            message = "The address has not appeared in the conversation. Search for it, or ask the user."
            return ToolFailure(ToolErrorCode.URL_NOT_IN_PRIOR_CONTEXT, message)
        outcome = await self._record_run(FETCH, plan.fetch.name, fetch(plan.fetch, named, _domains(declared)))
        if not isinstance(outcome, WebPage):
            return outcome
        return replace(_shorten(outcome, declared.max_content_tokens), is_citable=declared.cites_pages)

    async def _find_named(self, url: str, declared: Hosted) -> str | None:
        """Return the address as it stands in the conversation."""
        call, returned = self._call, tuple(self._rounds.shown)

        def find() -> str | None:
            shown = chain(list_shown(call.request(), call.client.read_tool_uses), returned)
            return find_fetchable(url, shown, declared.url_sources)

        return await run_off_loop(call.size + sum(len(text.text) for text in returned), find)

    async def _record_run(self, tool: str, backend: str, running: Awaitable[T]) -> T:
        """Wait for a tool, and note how it ended and how long it took."""
        clock = asyncio.get_running_loop().time
        began, result = clock(), CANCELLED
        try:
            outcome = await running
            result = outcome.code.value if isinstance(outcome, ToolFailure) else OK
            return outcome
        finally:
            self._call.record.record_tool_run(ToolRun(tool, backend, result, clock() - began))


def _shorten(page: WebPage, max_tokens: int | None) -> WebPage:
    """Cut a page's text to about this number of tokens."""
    if max_tokens is None or len(page.text) <= CHARACTERS_PER_TOKEN * max_tokens:
        return page
    return replace(page, text=page.text[: CHARACTERS_PER_TOKEN * max(0, max_tokens)], truncated=True)


def _domains(tool: Hosted) -> DomainRules:
    return DomainRules(tool.allowed_domains, tool.blocked_domains)


def _country(tool: Hosted) -> str | None:
    country = tool.location.get("country") if isinstance(tool.location, dict) else None
    return country if isinstance(country, str) and len(country) == 2 else None


class Paused(Struct, frozen=True):
    """The upstream has paused its reply: it continues once it gets back the reply so far."""

    reply: "TranslatedReply"
    events: list[Event]  # the turn as it came
    end: Ended
    used: Usage
    blocks: int = 0  # of the turn


def find_pause(reply: "TranslatedReply") -> Paused | None:
    hold = reply.find_stage(HoldPause)
    if hold is not None and hold.end is not None:
        return Paused(reply, hold.events, hold.end, reply.used_so_far())
    continuation = reply.find_stage(HoldContinuation)
    if continuation is not None and continuation.end is not None:
        return Paused(reply, [], continuation.end, reply.used_so_far(), reply.watch.blocks)
    return None


class ContinuePause(Struct, frozen=True):
    """Add what was returned to the next request, or end the reply after too many pauses."""

    paused: Paused
    rounds: Rounds

    async def run(self, scope: CallScope) -> Then:
        paused, rounds, reply = self.paused, self.rounds, self.paused.reply
        token = paused.end.continuation
        if rounds.pauses >= MAX_PAUSES or rounds.continuations >= MAX_CONTINUATIONS:
            reply.end_with(paused.end if token is None else Ended(Stop.LENGTH))
            return Then.FINISH
        if not await reserve_turn(scope.call.lease, paused.used):
            return end_at_limit(scope.call, reply)
        reply.wait_for(Awaited.MORE)
        if token is None:
            rounds.add(paused.events, {}, paused.used.output)
        else:
            rounds.continue_with(token)
            reply.encoding.expect_rounds(paused.blocks, paused.used)
        scope.call.record.rounds += 1
        return Then.NEXT_ROUND

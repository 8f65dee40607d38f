"""Rounds of a reply: a search between two of them, over a real socket, and replies that an upstream has paused."""

import asyncio
from typing import TypeAlias

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.config.settings import Tools
from dragoman.net.errors import ClientDisconnected
from dragoman.proxy.between_turns import CallScope, Then
from dragoman.proxy.replies.translated import TranslatedStream
from dragoman.proxy.replies.translation import Translation
from dragoman.proxy.request_record import Awaited
from dragoman.proxy.rounds import MAX_CONTINUATIONS, MAX_PAUSES, ContinuePause, Paused, Rounds, find_pause
from dragoman.server_tools.backends import ChosenBackends, McpServers, make_plan
from dragoman.server_tools.web_search import SearchQuery
from dragoman.state.lost_calls import LostCalls
from dragoman.translate.hub.events import Ended, Event, Stop
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Role, Text
from dragoman.translate.hub.server_tools import SearchFound, SearchOutcome, SearchResult
from dragoman.translate.hub.usage import Usage
from dragoman.translate.stages.hold_end import HoldContinuation, HoldPause
from fakes.upstream import Answer
from narrowing import present
from proxy.in_memory import MESSAGES_STREAM, make_call
from proxy.rigs import STREAM, ClientCall, GatewayRig, WriterRig, chunk
from replies import END, START, text
from waiting import wait_until_async

TOOL = {"type": "web_search_20250305", "name": "web_search"}
USER = {"role": "user", "content": "x"}
REQUEST = {"model": "m", "max_tokens": 99, "stream": True, "messages": [USER], "tools": [TOOL]}
FUNCTION = {"name": "web_search", "arguments": '{"query": "x"}'}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": FUNCTION}
CALLS_SEARCH = chunk({"role": "assistant", "tool_calls": [CALL]}) + chunk({}, "tool_calls") + b"data: [DONE]\n\n"


class SlowSearch:
    """A search service that answers when the test lets it."""

    name = "slow"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.was_cancelled = False

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return SearchFound((SearchResult("https://a.example/", "A", "text"),))


def ask(rig: GatewayRig, service: SlowSearch) -> ClientCall:
    plan = make_plan(ChosenBackends(service, None, McpServers()), frozenset(), Tools())
    rig.gateway.runtime = replace(rig.gateway.runtime, tool_plans={"one": plan})
    return rig.make_call("messages", msgspec.json.encode(REQUEST))


async def test_the_reply_continues_with_what_the_search_found() -> None:
    async with GatewayRig([Answer(CALLS_SEARCH), Answer(STREAM)]) as rig:
        service = SlowSearch()
        service.may_end.set()
        reply = await ask(rig, service).answer()
        assert b"web_search_tool_result" in reply.body
        assert b"https://a.example/" in rig.one.calls[1].body


async def test_a_client_that_has_left_ends_the_search_and_is_noticed_as_such() -> None:
    async with GatewayRig([Answer(CALLS_SEARCH), Answer(STREAM)]) as rig:
        service = SlowSearch()
        client = ask(rig, service)
        answering = asyncio.create_task(client.answer())
        await service.begun.wait()
        client.sink.reader_gone = True
        service.may_end.set()
        with pytest.raises(ClientDisconnected):
            await answering
        assert len(rig.one.calls) == 1


async def test_a_call_that_is_cancelled_cancels_its_search() -> None:
    async with GatewayRig([Answer(CALLS_SEARCH)]) as rig:
        service = SlowSearch()
        client = ask(rig, service)
        answering = asyncio.create_task(client.answer())
        await service.begun.wait()
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        await wait_until_async(lambda: service.was_cancelled)


def test_the_request_of_the_next_round_has_the_reply_so_far() -> None:
    rounds, request = Rounds(), make_call().request()
    assert rounds.extend(request, None) == request
    rounds.add([START, *text(0, "One"), END], {}, 1)
    [*_, added] = rounds.extend(request, None).turns
    assert (added.role, [part.text for part in added.parts if isinstance(part, Text)]) == (Role.ASSISTANT, ["One"])
    rounds.continue_with("token")
    assert rounds.extend(request, None).vendor.continuation == "token"


# A paused reply: what the next request gets, and when the reply ends instead

Holds: TypeAlias = HoldPause | HoldContinuation
REPLY_SO_FAR: list[Event] = [START, *text(0, "Wait")]
PAUSE, TOKEN = Ended(Stop.PAUSE), Ended(Stop.END, continuation="next")


async def reply_of(rig: WriterRig, stage: Holds) -> TranslatedStream:
    """Return a reply of an upstream that pauses."""
    reply = await rig.open_translated()
    encoding = rig.writer.encoding
    encoding.begin_turn(Ledger(), None, reply.watch, has_rounds=isinstance(stage, HoldPause))
    Translation.__init__(reply, [stage], encoding, reply.watch)
    return reply


def scope_of(rig: WriterRig) -> CallScope:
    return CallScope(rig.call, LostCalls(None), [])


@pytest.mark.parametrize(("stage", "end"), [(HoldPause, PAUSE), (HoldContinuation, TOKEN)])
async def test_a_pause_is_found_with_the_reply_so_far(stage: type[Holds], end: Ended) -> None:
    reply = await reply_of(WriterRig("messages", MESSAGES_STREAM), stage())
    assert find_pause(reply) is None
    reply.write_events([*REPLY_SO_FAR, end])
    paused = find_pause(reply)
    assert paused is not None
    assert paused.end is end
    assert paused.events == ([*REPLY_SO_FAR, PAUSE] if end is PAUSE else [])


@pytest.mark.parametrize(("stage", "end"), [(HoldPause, PAUSE), (HoldContinuation, TOKEN)])
async def test_the_next_request_gets_the_text_or_the_token(
    stage: type[HoldPause | HoldContinuation], end: Ended
) -> None:
    rig, rounds = WriterRig("messages", MESSAGES_STREAM), Rounds()
    reply = await reply_of(rig, stage())
    reply.write_events([*REPLY_SO_FAR, end])
    paused = find_pause(reply)
    assert await ContinuePause(present(paused), rounds).run(scope_of(rig)) is Then.NEXT_ROUND
    request = rounds.extend(rig.call.request(), None)
    assert (rounds.pauses, rounds.continuations) == ((1, 0) if end is PAUSE else (0, 1))
    assert len(request.turns) == len(rig.call.request().turns) + rounds.pauses
    assert request.vendor.continuation == (None if end is PAUSE else "next")
    assert (rig.call.record.rounds, rig.call.record.awaits) == (2, Awaited.MORE)


@pytest.mark.parametrize(("end", "stop"), [(PAUSE, b'"stop_reason":"pause_turn"'), (TOKEN, b'"max_tokens"')])
async def test_a_reply_that_is_paused_too_often_ends(end: Ended, stop: bytes) -> None:
    rig, rounds = WriterRig("messages", MESSAGES_STREAM), Rounds()
    for _ in range(MAX_PAUSES if end is PAUSE else MAX_CONTINUATIONS):
        rounds.add(REPLY_SO_FAR, {}, 1) if end is PAUSE else rounds.continue_with("next")
    reply = await reply_of(rig, HoldPause())
    reply.write_events(REPLY_SO_FAR)
    await reply.commit()
    step = ContinuePause(Paused(reply, [], end, Usage()), rounds)
    assert await step.run(scope_of(rig)) is Then.FINISH
    await reply.finish()
    assert stop in rig.wire.reply.body

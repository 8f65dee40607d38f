"""A paused reply: what the next request gets, and when the reply ends instead."""

from typing import TypeAlias

import pytest

from dragoman.accounts.lost_calls import LostCalls
from dragoman.flow.pipes import TranslationPipe
from dragoman.flow.response_writer import OpenReply
from dragoman.flow.rounds import (
    MAX_CONTINUATIONS,
    MAX_PAUSES,
    ContinuePause,
    PauseContinued,
    Paused,
    Rounds,
    find_pause,
)
from dragoman.hub.events import Ended, Event, Stop
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Stage
from dragoman.hub.usage import Usage
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.stages.hold_end import HoldContinuation, HoldPause
from flow.in_memory import CHAT, MESSAGES_STREAM
from flow.rigs import WriterRig
from narrowing import present
from replies import START, text

Holds: TypeAlias = HoldPause | HoldContinuation
REPLY_SO_FAR: list[Event] = [START, *text(0, "Wait")]
PAUSE, TOKEN = Ended(Stop.PAUSE), Ended(Stop.END, continuation="next")


async def reply_of(rig: WriterRig, stage: Stage[Event, Event]) -> OpenReply:
    """Return a reply that has been paused, with its pipe."""
    await rig.begin_translation()
    watch = ReplyMonitor(lambda: 0.0)
    encoding = rig.writer.encoding
    encoding.begin_turn(Ledger(), None, watch, has_rounds=isinstance(stage, HoldPause))
    return OpenReply(rig.call, LostCalls(None), rig.writer, TranslationPipe(None, [stage], encoding, watch))


@pytest.mark.parametrize(("stage", "end"), [(HoldPause, PAUSE), (HoldContinuation, TOKEN)])
async def test_a_pause_is_found_with_the_reply_so_far(stage: type[Holds], end: Ended) -> None:
    reply = await reply_of(WriterRig("messages", MESSAGES_STREAM), stage())
    assert find_pause(reply.translation) is None
    reply.translation.push([*REPLY_SO_FAR, end])
    paused = find_pause(reply.translation)
    assert paused is not None
    assert paused.end is end
    assert paused.events == ([*REPLY_SO_FAR, PAUSE] if end is PAUSE else [])


@pytest.mark.parametrize(("stage", "end"), [(HoldPause, PAUSE), (HoldContinuation, TOKEN)])
async def test_the_next_request_gets_the_text_or_the_token(
    stage: type[HoldPause | HoldContinuation], end: Ended
) -> None:
    rig, rounds = WriterRig("messages", MESSAGES_STREAM), Rounds()
    reply = await reply_of(rig, stage())
    reply.translation.push([*REPLY_SO_FAR, end])
    paused = find_pause(reply.translation)
    assert await ContinuePause(present(paused), rounds).run(reply) == PauseContinued(is_finished=False)
    request = rounds.extend(rig.call.request(), None)
    assert (rounds.pauses, rounds.continuations) == ((1, 0) if end is PAUSE else (0, 1))
    assert len(request.turns) == len(rig.call.request().turns) + rounds.pauses
    assert request.continuation == (None if end is PAUSE else "next")
    assert (rig.call.record.rounds, rig.call.record.awaits_round) == (2, True)


@pytest.mark.parametrize(("end", "stop"), [(PAUSE, b'"stop_reason":"pause_turn"'), (TOKEN, b'"max_tokens"')])
async def test_a_reply_that_is_paused_too_often_ends(end: Ended, stop: bytes) -> None:
    rig, rounds = WriterRig("messages", MESSAGES_STREAM), Rounds()
    for _ in range(MAX_PAUSES if end is PAUSE else MAX_CONTINUATIONS):
        rounds.add(REPLY_SO_FAR, {}, 1) if end is PAUSE else rounds.continue_with("next")
    reply = await reply_of(rig, HoldPause())
    await rig.writer.commit(await rig.begin_passthrough(), rig.call.headers, b"")
    rig.writer.encoding.in_use = True
    reply.write(reply.translation.push(REPLY_SO_FAR))
    step = ContinuePause(Paused([], end, Usage()), rounds)
    assert await step.run(reply) == PauseContinued(is_finished=True)
    await rig.writer.finish()
    assert stop in rig.wire.reply.body


async def test_a_reply_that_passes_unchanged_has_no_translation() -> None:
    rig = WriterRig("chat", CHAT.replace(b'"model"', b'"stream":true,"model"'))
    reply = OpenReply(rig.call, LostCalls(None), rig.writer, None)
    with pytest.raises(AssertionError):
        _ = reply.translation

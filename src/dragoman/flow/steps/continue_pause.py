"""Continue a reply that its vendor has paused, for a client whose protocol has no pause.

Some vendors need the reply so far in the next request. Others give a token, with which the same request gets the rest.
"""

from msgspec import Struct

from dragoman.flow.open_reply import OpenReply
from dragoman.flow.pipes import TranslationPipe
from dragoman.flow.steps.run_tools import Rounds
from dragoman.hub.events import Ended, Event, Stop
from dragoman.hub.usage import Usage
from dragoman.stages.hold_end import HoldContinuation, HoldPause

MAX_PAUSES = 5
MAX_CONTINUATIONS = 16


class Paused(Struct, frozen=True):
    """The upstream has paused its reply: it continues once it gets back the reply so far."""

    events: list[Event]  # the turn as it came
    end: Ended
    used: Usage
    blocks: int = 0  # of the turn


class PauseContinued(Struct, frozen=True):
    """The pause is dealt with."""

    is_finished: bool  # the reply was paused too often and ends here


def find_pause(pipe: TranslationPipe) -> Paused | None:
    hold = pipe.find_stage(HoldPause)
    if hold is not None and hold.end is not None:
        return Paused(hold.events, hold.end, pipe.used_so_far())
    continuation = pipe.find_stage(HoldContinuation)
    if continuation is not None and continuation.end is not None:
        return Paused([], continuation.end, pipe.used_so_far(), pipe.watch.blocks)
    return None


class ContinuePause(Struct, frozen=True):
    """Add what was said to the next request, or end the reply after too many pauses."""

    paused: Paused
    rounds: Rounds

    async def run(self, reply: OpenReply) -> PauseContinued:
        paused, rounds = self.paused, self.rounds
        token = paused.end.continuation
        if rounds.pauses >= MAX_PAUSES or rounds.continuations >= MAX_CONTINUATIONS:
            end = paused.end if token is None else Ended(Stop.LENGTH)
            reply.write(reply.writer.encoding.feed([end]))
            return PauseContinued(is_finished=True)
        reply.writer.resume_keep_alives()
        if token is None:
            rounds.add(paused.events, {}, paused.used.output)
        else:
            rounds.go_on_with(token)
            reply.writer.encoding.expect_rounds(paused.blocks, paused.used)
        reply.call.record.awaits_round = True
        reply.call.record.rounds += 1
        return PauseContinued(is_finished=False)

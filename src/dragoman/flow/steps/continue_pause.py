"""Go on with a reply that its vendor has paused, for a client whose protocol has no pause."""

from msgspec import Struct

from dragoman.flow.open_reply import OpenReply
from dragoman.flow.pipes import TranslationPipe
from dragoman.flow.steps.run_tools import Rounds
from dragoman.hub.events import Ended, Event
from dragoman.stages.hold_pause import HoldPause

MAX_PAUSES = 5


class Paused(Struct, frozen=True):
    """The upstream has paused its reply: it expects to be sent what it said, and then goes on."""

    events: list[Event]  # the turn as it came
    end: Ended
    output_tokens: int


class PauseContinued(Struct, frozen=True):
    """The pause is dealt with."""

    is_finished: bool  # the reply was paused too often and ends here


def find_pause(pipe: TranslationPipe) -> Paused | None:
    hold = pipe.find_stage(HoldPause)
    if hold is None or hold.end is None:
        return None
    return Paused(hold.events, hold.end, pipe.used_so_far().output)


class ContinuePause(Struct, frozen=True):
    """Add what was said to the next request, or end the reply after too many pauses."""

    paused: Paused
    rounds: Rounds

    async def run(self, reply: OpenReply) -> PauseContinued:
        paused, rounds = self.paused, self.rounds
        if rounds.pauses >= MAX_PAUSES:
            reply.write(reply.writer.encoding.feed([paused.end]))
            return PauseContinued(is_finished=True)
        reply.writer.resume_keep_alives()
        rounds.add(paused.events, {}, paused.output_tokens)
        reply.call.record.awaits_round = True
        reply.call.record.rounds += 1
        return PauseContinued(is_finished=False)

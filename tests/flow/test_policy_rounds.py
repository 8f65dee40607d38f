"""What follows when the gateway has run tools, or an upstream has paused: the same target gets the next request."""

import pytest

from dragoman.flow.rounds import ContinuePause, PauseContinued, Paused, ToolsRan
from dragoman.flow.step import Ask, Finish, GiveUp, Interrupted, NoReply, TurnEnd
from dragoman.hub.events import Ended, Stop
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.usage import Usage
from flow.policy_trial import ONE, Trial
from narrowing import expect

PAUSED = Paused([Ended(Stop.PAUSE)], Ended(Stop.PAUSE), Usage(output=3))
BROKEN = Failure(Kind.UPSTREAM, "broken")


def pause_once(targets: int = 1, attempts: int = 3) -> Trial:
    """Return a call whose first turn was paused, and whose second has just begun."""
    trial = Trial(targets=targets, attempts=attempts)
    trial.begin()
    step = trial.after(PAUSED)
    assert isinstance(step, ContinuePause)
    step.rounds.add(PAUSED.events, {}, PAUSED.used.output)
    assert expect(Ask, trial.after(PauseContinued(is_finished=False))).rounds is step.rounds
    return trial


def test_a_paused_turn_is_continued_by_the_same_target() -> None:
    trial = pause_once(targets=2)
    assert [ask.route for ask in trial.requests] == [ONE, ONE]
    assert [ask.number for ask in trial.requests] == [1, 2]


@pytest.mark.parametrize("end", [PauseContinued(is_finished=True), ToolsRan(is_finished=True)])
def test_a_reply_that_is_finished_ends(end: TurnEnd) -> None:
    assert isinstance(pause_once().after(end), Finish)


def test_a_later_round_is_repeated_by_the_same_target_alone() -> None:
    trial = pause_once(targets=2, attempts=2)
    again = trial.after(NoReply(BROKEN))
    assert isinstance(again, Ask)
    assert (again.route, again.rounds) == (ONE, trial.requests[1].rounds)
    assert expect(GiveUp, trial.after(NoReply(BROKEN))).failure is BROKEN


def test_the_client_gets_the_failure_of_a_later_round() -> None:
    assert isinstance(pause_once(targets=2).after(Interrupted(BROKEN)), GiveUp)

"""The values of the turn loop are closed sets: code that matches on one must handle every kind."""

from typing import get_args

import msgspec

from dragoman.proxy.complete_reply import CompleteCall, CutCalls, DropCutCalls
from dragoman.proxy.rounds import ContinuePause, Paused, RunTools, ToolsCalled
from dragoman.proxy.step import (
    Ask,
    Completed,
    ErrorReply,
    Finish,
    GiveUp,
    Interrupted,
    NoReply,
    Step,
    TurnEnd,
    Wait,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.upstreams.routing import Route
from proxy.in_memory import make_provider

FAILURE = Failure(Kind.LOST, "gone")


def test_the_steps_and_the_ends_of_a_turn() -> None:
    assert set(get_args(Step)) == {Ask, Wait, CompleteCall, DropCutCalls, RunTools, ContinuePause, GiveUp, Finish}
    assert set(get_args(TurnEnd)) == {NoReply, Interrupted, CutCalls, ToolsCalled, Paused, Completed}


def test_steps_and_ends_are_frozen_values() -> None:
    for kind in (*get_args(Step), *get_args(TurnEnd), ErrorReply):
        assert kind.__struct_config__.frozen, kind
    assert NoReply(FAILURE) == NoReply(Failure(Kind.LOST, "gone"))
    assert msgspec.structs.replace(Wait(1.0), seconds=2.0) == Wait(2.0)


def test_a_first_request_changes_and_continues_nothing() -> None:
    ask = Ask(Route("up", "m"), make_provider(), 1)
    assert (ask.changes, ask.continuation, ask.renew_after) == ((), None, None)

"""The end of a reply is held while the gateway runs tools, completes a call or asks for the rest; others pass."""

import pytest

from dragoman.translate.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    Opened,
    Stop,
    TruncatedCall,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.usage import Usage
from dragoman.translate.stages.hold_end import HoldPause, HoldServerCalls, HoldTruncatedCall, ServerCall
from laws import assert_any_recut_agrees, run
from replies import END, START, call, join_deltas, split_delta, text
from tables import each_row

KINDS = {"web_search": "web_search", "gateway_web_fetch": "web_fetch"}
SEARCH = call(1, "web_search", '{"query":', '"x"}')
TOOL_END = Ended(Stop.TOOL)
HELD = ServerCall("call-1", "web_search", '{"query":"x"}')


def feed_all(*events: Event) -> tuple[HoldServerCalls, list[Event]]:
    machine = HoldServerCalls(KINDS)
    return machine, run(machine, events)


def test_a_reply_without_such_a_call_passes_unchanged() -> None:
    events = [START, *text(0, "hi"), *call(1, "get_weather", "{}"), UsageReported(Usage(1, 2)), TOOL_END]
    machine, out = feed_all(*events)
    assert out == machine.events == events
    assert (machine.held, machine.end) == ([], None)


def test_a_call_is_held_with_the_end_of_the_reply() -> None:
    machine, out = feed_all(START, *text(0, "hi"), *SEARCH, UsageReported(Usage(1, 2)), TOOL_END)
    assert out == [START, *text(0, "hi"), UsageReported(Usage(1, 2))]
    assert machine.held == [HELD]
    assert machine.end is TOOL_END
    assert machine.block_of("call-1") == 1
    assert not machine.calls_client_tool


def test_a_call_is_known_by_its_name_upstream_and_not_by_what_it_stands_for() -> None:
    machine, out = feed_all(START, *call(0, "web_fetch", "{}"), *call(1, "gateway_web_fetch", "{}"), TOOL_END)
    assert out == [START, *call(0, "web_fetch", "{}")]
    assert machine.held == [ServerCall("call-1", "web_fetch", "{}")]
    assert machine.calls_client_tool


def test_what_opens_after_the_call_is_held_in_its_place() -> None:
    later = call(2, "get_weather", "{}")
    machine, out = feed_all(START, *text(0, "hi"), *SEARCH, *later, *call(3, "web_search"), TOOL_END)
    assert out == [START, *text(0, "hi")]
    assert machine.held == [HELD, *later, ServerCall("call-3", "web_search", "")]
    assert machine.calls_client_tool


def test_a_block_that_was_open_before_the_call_continues() -> None:
    opened, delta, closed = text(0, "hi")
    machine, out = feed_all(START, opened, *SEARCH, delta, closed, TOOL_END)
    assert out == [START, opened, delta, closed]
    assert machine.held == [HELD]


def test_calls_whose_arguments_interleave_are_kept_apart() -> None:
    first, second = (Opened(block, CallBlock(f"call-{block}", "web_search")) for block in (1, 2))
    deltas = (Delta(1, "a"), Delta(2, "b"), Delta(1, "c"), Delta(2, "d"))
    machine, _ = feed_all(START, first, second, *deltas, Closed(2), Closed(1), TOOL_END)
    assert machine.held == [ServerCall("call-1", "web_search", "ac"), ServerCall("call-2", "web_search", "bd")]


def test_some_upstreams_say_end_after_a_call() -> None:
    machine, out = feed_all(START, *SEARCH, END)
    assert out == [START]
    assert machine.end is END


@pytest.mark.parametrize("stop", [Stop.LENGTH, Stop.FILTERED, Stop.STOP_SEQUENCE])
def test_after_another_end_the_tool_does_not_run_and_what_came_later_is_passed_on(stop: Stop) -> None:
    later = text(2, "and so")
    machine, out = feed_all(START, *SEARCH, *later, Ended(stop))
    assert out == [START, *later, Ended(stop)]
    assert machine.end is None


def test_after_a_failure_nothing_that_was_held_is_passed_on() -> None:
    failed = Failed(Failure(Kind.LOST, "gone"))
    machine, out = feed_all(START, *SEARCH, *text(2, "and so"), failed)
    assert out == [START, failed]
    assert machine.end is None


def test_any_cut_of_the_deltas_holds_the_same() -> None:
    events = [START, *text(0, "hello"), *SEARCH, *text(2, "later"), TOOL_END]
    assert_any_recut_agrees(lambda: HoldServerCalls(KINDS), events, split_delta, join_deltas)


CUT = Ended(Stop.LENGTH, cut=(TruncatedCall("call_1", "write", '{"path": "x'),))
REPLY = [START, *text(0, "Writing ", "now."), *call(1, "read", "{}")]


def test_an_end_with_a_truncated_call_is_held_with_the_text() -> None:
    hold = HoldTruncatedCall()
    assert run(hold, [*REPLY, CUT]) == REPLY
    assert (hold.held, hold.text, hold.next_block) == (CUT, "Writing now.", 2)
    assert list(hold.feed(Ended(Stop.LENGTH))) == [Ended(Stop.LENGTH)]  # the one that follows passes


def test_an_end_without_a_truncated_call_passes() -> None:
    hold = HoldTruncatedCall()
    assert run(hold, [*REPLY, TOOL_END]) == [*REPLY, TOOL_END]
    assert hold.held is None


@each_row("stop", Stop)
def test_only_a_pause_is_held_with_the_reply_so_far(stop: Stop) -> None:
    stage = HoldPause()
    events = [*REPLY, Ended(stop)]
    paused = stop is Stop.PAUSE
    assert run(stage, events) == (REPLY if paused else events)
    assert stage.end == (Ended(stop) if paused else None)
    assert not paused or stage.events == events

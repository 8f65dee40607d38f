"""A call that is no JSON object is a failure, unless something cut it off; every other reply passes untouched."""

import pytest

from dragoman.translate.hub.events import CallBlock, Closed, Delta, Ended, Event, Failed, Opened, Stop, UsageReported
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.usage import Usage
from dragoman.translate.stages.check_calls import MAX_WATCHED, CheckCalls, CutCallMonitor
from laws import assert_any_recut_agrees, run
from replies import END, START, call, join_deltas, split_delta, text
from tables import each_row

BROKEN = call(1, "weather", '{"a": ', "oops}")
GOOD = [START, *text(0, "Let me."), *call(1, "weather", '{"a":', "1}"), *call(2, "clock"), UsageReported(Usage()), END]


def run_check(*events: Event) -> list[Event]:
    return run(CheckCalls(), events)


def test_whole_calls_pass_at_once() -> None:
    stage = CheckCalls()
    assert [list(stage.feed(event)) for event in GOOD] == [[event] for event in GOOD]


@pytest.mark.parametrize("arguments", ['{"a": oops}', "[1]", '"text"', "null", "{}{}", '{"a":', "[" * 10_000])
def test_arguments_that_are_no_object_are_the_end(arguments: str) -> None:
    *before, closed = call(0, "weather", arguments)
    *passed, last = run_check(START, *before, closed, UsageReported(Usage()), Ended(Stop.TOOL))
    assert passed == [START, *before]
    assert isinstance(last, Failed)
    assert last.failure.kind is Kind.CORRUPT
    assert "'weather'" in last.failure.message


@each_row(
    ("arguments", "passes"),
    [
        ('{"a": oops}', True),
        ("[1]", True),
        ("city=Bonn", True),
        ("{}{}", True),
        ('{"a":"}', False),
        ('{"a":{"b":1}', False),
        ("{", False),
        ('{"a": oops', False),
    ],
)
def test_clients_that_get_text_get_invalid_arguments_but_none_that_break_off(arguments: str, passes: bool) -> None:
    reply = [START, *call(0, "weather", *arguments), Ended(Stop.TOOL)]
    out = run(CheckCalls(any_arguments=True), reply)
    assert out == reply if passes else isinstance(out[-1], Failed)
    cut = [*reply[:-1], Ended(Stop.LENGTH)]
    assert run(CheckCalls(any_arguments=True), cut) == cut


def watch(*events: Event) -> Failure | None:
    monitor = CutCallMonitor()
    failures = []
    for event in events:
        if isinstance(event, Delta):
            monitor.observe_run((event,), event.text)
        else:
            failures.append(monitor.observe(event))
    return failures[-1]


def test_what_only_passes_is_watched_by_the_same_rule_in_bounded_memory() -> None:
    cut = call(1, "weather", '{"a":', '"un')
    assert watch(START, *text(0, "{"), *cut, *call(2, "clock", "{}"), Ended(Stop.TOOL)) is not None
    assert watch(START, *cut, Ended(Stop.LENGTH)) is None
    assert watch(*GOOD) is None
    assert watch(START, *call(1, "weather", "city=Bonn"), Ended(Stop.TOOL)) is None
    assert watch(START, *call(1, "weather", '{"a":"', "x" * MAX_WATCHED, "y"), Ended(Stop.TOOL)) is None
    opened = Opened(0, CallBlock("call-0", "patch", custom=True))
    assert watch(START, opened, *call(0, "patch", "{")[1:], Ended(Stop.TOOL)) is None


@pytest.mark.parametrize("stop", [Stop.LENGTH, Stop.CONTEXT_FULL, Stop.FILTERED])
def test_incomplete_input_is_passed_on_as_far_as_it_was_received(stop: Stop) -> None:
    reply = [START, *call(0, "weather", '{"a": "unfin'), UsageReported(Usage()), Ended(stop)]
    assert run_check(*reply) == reply


def test_a_block_after_an_invalid_call_shows_that_it_was_not_cut_off() -> None:
    out = run_check(START, *BROKEN, *text(2, "Done."), Ended(Stop.LENGTH))
    assert out[:4] == [START, *BROKEN[:-1]]
    assert isinstance(out[4], Failed)


def test_parallel_calls_that_end_together_wait_for_the_end() -> None:
    closed = Closed(2)
    *second, _ = call(2, "clock", "{}")
    reply = [START, *BROKEN[:-1], *second, BROKEN[-1], closed, UsageReported(Usage()), Ended(Stop.LENGTH)]
    assert run_check(*reply) == reply


def test_a_failure_of_the_upstream_goes_first() -> None:
    lost = Failed(Failure(Kind.LOST, "gone"))
    assert run_check(START, *BROKEN, lost) == [START, *BROKEN[:-1], lost]


def test_custom_tools_take_any_text() -> None:
    opened = Opened(0, CallBlock("call-0", "patch", custom=True))
    reply = [START, opened, *call(0, "patch", "*** Begin")[1:], Ended(Stop.TOOL)]
    assert run_check(*reply) == reply


def test_blank_arguments_are_none() -> None:
    opened, *_, closed = call(0, "clock", " ", "\n")
    assert run_check(START, opened, Delta(0, " "), Delta(0, "\n"), closed, END) == [START, opened, closed, END]


def test_any_recut_of_the_deltas_agrees() -> None:
    replies: tuple[list[Event], ...] = (
        GOOD,
        [START, *call(0, "f", "  {} "), END],
        [START, *BROKEN, Ended(Stop.TOOL)],
        [START, Delta(9, "x"), END],
    )
    for reply in replies:
        assert_any_recut_agrees(CheckCalls, reply, split_delta, join_deltas)

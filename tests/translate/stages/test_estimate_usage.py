"""Usage that an upstream does not report is estimated, tagged, and reported just before the end."""

import sys
from collections.abc import Callable

import pytest

from dragoman.translate.hub.events import (
    Closed,
    Delta,
    Event,
    Failed,
    Opened,
    Started,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.usage import Usage, UsageSource
from dragoman.translate.stages.estimate_usage import EstimateUsage
from laws import assert_any_recut_agrees, run
from replies import END, START, call, join_deltas, split_delta, text

THINKING: list[Event] = [Opened(0, ThinkingBlock()), Delta(0, "a b c"), Closed(0)]


def words(text: str) -> int:
    return len(text.split())


def run_estimate(*events: Event, input_tokens: int | Callable[[], int] = 9) -> list[Event]:
    return run(EstimateUsage(words, input_tokens), events)


def test_a_reply_without_usage_gets_a_tagged_estimate_before_its_end() -> None:
    reply = (START, *THINKING, *text(1, "one tw", "o"), *call(2, "f", "{}"), END)
    reported = UsageReported(Usage(input=9, output=3 + 2 + 2, reasoning=3, source=UsageSource.ESTIMATED))
    assert run_estimate(*reply) == [*reply[:-1], reported, END]


def test_reported_usage_is_not_changed() -> None:
    reply = [START, *text(0, "one"), UsageReported(Usage(1, 1)), END]
    assert run_estimate(*reply) == reply


def test_input_known_at_the_start_is_kept() -> None:
    reply = [Started("r", "m", Usage(input=50, cache_read=40)), *text(0, "one two"), END]
    assert run_estimate(*reply)[-2] == UsageReported(
        Usage(input=50, output=2, cache_read=40, source=UsageSource.ESTIMATED)
    )


def test_a_settled_usage_is_reported_at_the_end_instead_of_any_other() -> None:
    used = Usage(input=30, output=4, credits=0.5)
    for reported in ([], [UsageReported(Usage(input=5, output=3))]):
        stage = EstimateUsage(words, 9)
        for event in (START, *text(0, "one two"), *reported):
            stage.feed(event)
        stage.settle(" three")
        stage.settle("what was withheld counts once")
        own = Usage(input=5, output=3) if reported else Usage(input=9, output=3, source=UsageSource.ESTIMATED)
        assert stage.usage == own
        stage.add(used)
        for event in call(1, "f", "{}"):
            assert stage.feed(event) == (event,)
        assert list(stage.feed(END)) == [UsageReported(own + used), END]


def test_the_input_is_only_counted_when_it_is_needed() -> None:
    counted: list[str] = []

    def count_input() -> int:
        counted.append("counted")
        return 5

    run_estimate(START, UsageReported(Usage(1, 1)), END, input_tokens=count_input)
    assert counted == []
    out = run_estimate(START, END, input_tokens=count_input)
    assert counted == ["counted"]
    assert out[1] == UsageReported(Usage(input=5, source=UsageSource.ESTIMATED))


def test_a_failed_reply_is_not_estimated() -> None:
    reply = [START, *text(0, "one"), Failed(Failure(Kind.LOST, "gone"))]
    assert run_estimate(*reply) == reply


def test_any_recut_of_the_deltas_gives_the_same_estimate() -> None:
    reply = [START, *THINKING, *text(1, "one two three"), END]
    assert_any_recut_agrees(lambda: EstimateUsage(words, 1), reply, split_delta, join_deltas)


def test_a_total_context_is_split_into_counted_output_and_remaining_input() -> None:
    reported = UsageReported(Usage(context=20_000, credits=0.5, source=UsageSource.DERIVED))
    reply = [START, *THINKING, *text(1, " ".join(["w"] * 497)), reported, END]
    assert run_estimate(*reply) == [
        *reply[:-2],
        UsageReported(Usage(19_500, 500, reasoning=3, context=20_000, credits=0.5, source=UsageSource.DERIVED)),
        END,
    ]


def test_a_context_smaller_than_the_output_leaves_no_input() -> None:
    out = run_estimate(
        START, *text(0, "one two three"), UsageReported(Usage(context=2, source=UsageSource.DERIVED)), END
    )
    assert out[-2] == UsageReported(Usage(0, 3, context=2, source=UsageSource.DERIVED))


def test_credits_without_counts_are_kept_beside_the_estimate() -> None:
    out = run_estimate(START, *text(0, "one two"), UsageReported(Usage(credits=0.5, source=UsageSource.ESTIMATED)), END)
    assert out[-2] == UsageReported(Usage(9, 2, credits=0.5, source=UsageSource.ESTIMATED))


def test_reported_usage_wins_over_a_context() -> None:
    reply = [
        START,
        *text(0, "one"),
        UsageReported(Usage(context=2, source=UsageSource.DERIVED)),
        UsageReported(Usage(1, 1)),
        END,
    ]
    assert run_estimate(*reply) == [*reply[:-3], *reply[-2:]]


def test_a_reply_of_any_length_is_counted_in_bounded_memory() -> None:
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text) // 4

    stage = EstimateUsage(count, 7)
    stage.feed(Opened(0, TextBlock()))
    for _ in range(100_000):
        stage.feed(Delta(0, "word "))
    assert stage.usage_so_far().output == pytest.approx(125_000, rel=0.01)
    assert max(counted) < 40_000
    sample = stage._text
    assert sum(map(sys.getsizeof, [sample._kept, *sample.pieces])) < 100_000

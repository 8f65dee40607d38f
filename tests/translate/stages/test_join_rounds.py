"""Rounds of one reply become one: one start, blocks in one sequence, and usage as a sum."""

from dragoman.translate.hub.events import (
    CitationAdded,
    Closed,
    Delta,
    Event,
    HostedBlock,
    OpaqueAdded,
    Opened,
    Started,
    TextBlock,
    ThinkingBlock,
    ToolReturned,
    UsageReported,
)
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.request import Citation
from dragoman.translate.hub.server_tools import SearchFound, ToolErrorCode, ToolFailure, ToolOutcome, WebPage
from dragoman.translate.hub.usage import Usage
from dragoman.translate.stages.join_replies import JoinRounds
from laws import assert_any_recut_agrees
from replies import END, START, join_deltas, split_delta, text

FOUND = SearchFound(())
PAGE = WebPage("https://a.example/", "A")
FAILED = ToolFailure(ToolErrorCode.UNAVAILABLE, "no")


def feed(machine: JoinRounds, *events: Event) -> list[Event]:
    return [out for event in events for out in machine.feed(event)]


def make_usage(
    input: int, output: int, later_input: int = 0, web_searches: int = 0, web_fetches: int = 0
) -> UsageReported:
    searched = Usage(web_searches=web_searches, web_fetches=web_fetches)
    return UsageReported(Usage(input, output, later_input=later_input) + searched)


def make_runs(block: int, *outcomes: ToolOutcome) -> list[Event]:
    hosted = HostedBlock("id", "web_search", is_ours=True)
    return [
        event
        for at, outcome in enumerate(outcomes, block)
        for event in (Opened(at, hosted), ToolReturned(at, outcome), Closed(at))
    ]


def test_one_round_passes_unchanged() -> None:
    events = [START, *text(0, "hi"), make_usage(10, 5), END]
    assert feed(JoinRounds(), *events) == events


def test_only_the_first_round_has_a_start() -> None:
    machine = JoinRounds()
    assert feed(machine, START) == [START]
    machine.begin_round()
    assert feed(machine, Started("reply-2", "model-1")) == []


def test_blocks_of_later_rounds_follow_in_one_sequence() -> None:
    machine = JoinRounds()
    feed(machine, START, *text(0, "a"), *make_runs(1, FOUND))
    machine.begin_round()
    opaque, citation = Opaque("up", OpaqueForm.SIGNATURE, "c2ln", "model-1"), Citation("https://a.example/")
    thought: list[Event] = [Opened(0, ThinkingBlock()), Delta(0, "hm"), OpaqueAdded(0, opaque), Closed(0)]
    cited: list[Event] = [Opened(1, TextBlock()), CitationAdded(1, citation), Delta(1, "b"), Closed(1)]
    out = feed(machine, START, *thought, *cited)
    assert [getattr(event, "block", None) for event in out] == [2, 2, 2, 2, 3, 3, 3, 3]
    machine.begin_round()
    assert feed(machine, *text(0, "c"))[0] == Opened(4, TextBlock())


def test_a_round_without_blocks_takes_no_number() -> None:
    machine = JoinRounds()
    feed(machine, START, *text(0, "a"))
    machine.begin_round()
    machine.begin_round()
    assert feed(machine, *text(0, "b")) == text(1, "b")


def test_usage_is_the_sum_of_all_rounds_and_the_last_report_of_a_round_counts() -> None:
    machine = JoinRounds()
    assert feed(machine, START, make_usage(10, 1), make_usage(10, 5)) == [START, make_usage(10, 1), make_usage(10, 5)]
    assert machine.used_before is None
    feed(machine, *make_runs(0, FOUND))
    machine.begin_round()
    assert machine.used_before == Usage(10, 5, web_searches=1)
    assert feed(machine, make_usage(30, 2), make_usage(30, 7), END) == [
        make_usage(40, 7, later_input=30, web_searches=1),
        make_usage(40, 12, later_input=30, web_searches=1),
        END,
    ]


def test_runs_are_counted_and_failed_ones_are_not() -> None:
    machine = JoinRounds()
    feed(machine, START, make_usage(10, 5), *make_runs(0, FOUND, FAILED, FOUND, PAGE))
    machine.begin_round()
    assert feed(machine, make_usage(1, 1))[0] == make_usage(11, 6, later_input=1, web_searches=2, web_fetches=1)


def test_runs_after_the_last_usage_are_reported_before_the_end() -> None:
    machine = JoinRounds()
    feed(machine, START, make_usage(10, 5), *make_runs(0, FOUND))
    assert feed(machine, END) == [make_usage(10, 5, web_searches=1), END]


def test_any_cut_of_the_deltas_agrees() -> None:
    events = [START, *text(0, "hello"), *make_runs(1, FOUND), *text(2, "world"), make_usage(1, 1), END]
    assert_any_recut_agrees(JoinRounds, events, split_delta, join_deltas)

"""The grammar guard: events in any order become a legal sequence, and every repair is counted."""

import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from dragoman.translate.hub.events import (
    Block,
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    OpaqueAdded,
    Opened,
    RefusalBlock,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.request import Citation
from dragoman.translate.hub.usage import Usage
from dragoman.translate.stages.guard import Guard, describe
from laws import run
from replies import END, START, call, text
from tables import each_row

PAGE = Path(__file__).parents[3] / "docs" / "events.md"
SEAL = Opaque("echo", OpaqueForm.SIGNATURE, "signed")
OVERLOADED = Failed(Failure(Kind.OVERLOADED, "busy"))


def run_guard(*events: Event) -> tuple[list[Event], list[str]]:
    trips: list[str] = []
    return run(Guard(trips.append), events), trips


def test_a_legal_reply_passes_unchanged() -> None:
    thinking: list[Event] = [Opened(0, ThinkingBlock()), Delta(0, "hm"), OpaqueAdded(0, SEAL), Closed(0)]
    cited: list[Event] = [
        Opened(1, TextBlock()),
        Delta(1, "so"),
        CitationAdded(1, Citation(url="https://a.example")),
        Closed(1),
    ]
    hosted: list[Event] = [Opened(2, HostedBlock("h", "web_search")), Closed(2)]
    reply = [START, *thinking, *cited, *hosted, *call(3, "f", "{}"), UsageReported(Usage(1, 2)), END]
    assert run_guard(*reply) == (reply, [])


def test_interleaved_blocks_are_legal() -> None:
    (open_a, a, close_a), (open_b, b, close_b) = text(0, "a"), call(1, "f", "{}")
    reply = [START, open_a, open_b, b, a, close_b, close_a, END]
    assert run_guard(*reply) == (reply, [])


@each_row(
    ("events", "why"),
    [
        ([*text(0, "a")], "Opened before Started"),
        ([END], "Ended before Started"),
        ([UsageReported(Usage())], "UsageReported before Started"),
        ([START, START], "Started twice"),
        ([START, Delta(0, "a")], "Delta of a block not opened"),
        ([START, Closed(0)], "Closed of a block not opened"),
        ([START, *text(0, "a"), Delta(0, "b")], "Delta of a closed block"),
        ([START, *text(0, "a"), Closed(0)], "Closed of a closed block"),
        ([START, *text(0, "a"), *text(0, "b")], "Opened twice"),
        ([START, Opened(0, TextBlock()), Opened(0, TextBlock())], "Opened twice"),
        ([START, Opened(0, TextBlock()), OpaqueAdded(0, SEAL)], "OpaqueAdded in a block: text"),
        ([START, Opened(0, CallBlock("c", "f")), CitationAdded(0, Citation())], "CitationAdded in a block: call"),
        ([START, Opened(0, RefusalBlock()), OpaqueAdded(0, SEAL)], "OpaqueAdded in a block: refusal"),
        (
            [START, Opened(0, ThinkingBlock()), OpaqueAdded(0, SEAL), OpaqueAdded(0, SEAL)],
            "OpaqueAdded in a block: thinking, sealed",
        ),
        ([START, Opened(0, HostedBlock("h", "web_search")), Delta(0, "x")], "Delta in a block: hosted"),
    ],
)
def test_an_illegal_order_becomes_one_counted_failure_and_nothing_follows(events: list[Event], why: str) -> None:
    out, trips = run_guard(*events, Delta(0, "late"), END)
    assert trips == [why]
    (last,) = [event for event in out if isinstance(event, Failed)]
    assert out[-1] is last
    assert last.failure.kind is Kind.BUG
    assert why in last.failure.message


def test_blocks_left_open_at_the_end_are_closed_and_counted() -> None:
    out, trips = run_guard(START, Opened(0, TextBlock()), Opened(1, CallBlock("c", "f")), Delta(0, "a"), END)
    assert out[-3:] == [Closed(0), Closed(1), END]
    assert trips == ["Ended with a block open"]


def test_an_empty_delta_is_dropped_in_silence_unless_it_carries_logprobs() -> None:
    logprobs = Delta(0, "", Raw(b"[]"))
    out, trips = run_guard(START, Opened(0, TextBlock()), Delta(0, ""), logprobs, Closed(0), END)
    assert out == [START, Opened(0, TextBlock()), logprobs, Closed(0), END]
    assert trips == []


def test_usage_at_any_time_is_sent_once_just_before_the_end() -> None:
    opened, delta, closed = text(0, "a")
    early, late = UsageReported(Usage(1, 1)), UsageReported(Usage(1, 2))
    assert run_guard(START, early, opened, late, delta, closed, END) == ([START, opened, delta, closed, late, END], [])
    assert run_guard(START, opened, late, OVERLOADED) == ([START, opened, late, OVERLOADED], [])


def test_a_reply_without_its_end_is_truncated() -> None:
    out, trips = run_guard(START, *text(0, "a"))
    assert isinstance(out[-1], Failed)
    assert out[-1].failure.kind is Kind.TRUNCATED
    assert trips == ["the input ended without Ended or Failed"]


def test_a_failure_may_come_first_and_leaves_blocks_open() -> None:
    assert run_guard(OVERLOADED, START) == ([OVERLOADED], [])
    assert run_guard(START, Opened(0, TextBlock()), OVERLOADED, OVERLOADED)[0][-1] == OVERLOADED


def test_what_follows_the_end_is_counted_once_and_never_sent() -> None:
    reply = [START, *text(0, "a"), END]
    assert run_guard(*reply, Delta(0, "late"), Delta(0, "later"), END) == (reply, ["Delta after Ended"])


BLOCKS: st.SearchStrategy[Block] = st.sampled_from(
    [TextBlock(), RefusalBlock(), ThinkingBlock(), CallBlock("c", "f"), HostedBlock("h", "mcp")]
)
NUMBERS = st.integers(0, 2)
ANY_EVENT: st.SearchStrategy[Event] = st.one_of(
    st.just(START),
    st.builds(Opened, NUMBERS, BLOCKS),
    st.builds(Delta, NUMBERS, st.sampled_from(["", "a"])),
    st.builds(OpaqueAdded, NUMBERS, st.just(SEAL)),
    st.builds(CitationAdded, NUMBERS, st.just(Citation())),
    st.builds(Closed, NUMBERS),
    st.just(UsageReported(Usage())),
    st.just(END),
    st.just(OVERLOADED),
)


@settings(max_examples=100)
@given(st.lists(ANY_EVENT, max_size=14))
def test_any_order_comes_out_legal(events: list[Event]) -> None:
    out, _ = run_guard(*events)
    again, trips = run_guard(*out)
    assert (again, trips) == (out, [])
    assert [type(event) for event in out].count(Started) <= 1
    assert isinstance(out[-1], Ended | Failed)
    assert not any(isinstance(event, Ended | Failed) for event in out[:-1])


def test_the_documentation_is_drawn_from_the_table() -> None:
    page = describe()
    assert PAGE.read_text() == page, "write stages.guard.describe() to docs/events.md"
    assert "| waiting | streaming | **refused** |" in page
    assert "| hosted | **refused** | **refused** | **refused** | **refused** | hosted, returned | closed |" in page


def test_a_delta_costs_less_than_a_microsecond() -> None:
    guard = Guard(lambda why: None)
    run_up: list[Event] = [START, Opened(0, TextBlock())]
    for event in run_up:
        guard.feed(event)
    delta = Delta(0, "word ")
    best = min(_seconds(guard, delta, 20_000) for _ in range(5))
    assert best / 20_000 < 1e-6  # 0.2 µs where nothing else runs


def _seconds(guard: Guard, delta: Delta, times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        guard.feed(delta)
    return time.process_time() - start


def test_a_stop_is_kept_as_it_came() -> None:
    end = Ended(Stop.FILTERED, category="cyber", explanation="no")
    assert run_guard(START, end) == ([START, end], [])

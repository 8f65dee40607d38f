"""A reply that breaks off is continued by another as if it were one; what cannot be continued fails at once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.usage import Source, Usage
from dragoman.stages.join_replies import ContinuationStart, JoinReplies
from tables import each_row

LOST = Failed(Failure(Kind.LOST, "the connection broke"))
TEXT = "The quick brown fox jumps over the lazy dog, and then it "
REST = "sleeps in the sun."
CLEAN = Ended(Stop.END)
MARKER = "[[continue:0123456789ab]]"
SPENT = Usage(input=20, output=9, cache_read=4, credits=0.5, source=Source.ESTIMATED)


def feed_all(joint: JoinReplies, *events: Event) -> list[Event]:
    return [out for event in events for out in joint.feed(event)]


def make_begun(*after: Event) -> JoinReplies:
    joint = JoinReplies()
    feed_all(joint, Started("a", "m"), Opened(0, TextBlock()), Delta(0, TEXT), *after)
    return joint


def resume(joint: JoinReplies, spent: Usage = SPENT) -> None:
    joint.interrupt(spent)
    joint.begin_continuation(MARKER)


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) or 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def read_continued(first: str, continuation: list[str], end: Event = CLEAN) -> tuple[str, Ledger]:
    """What a client reads in all where the first upstream breaks off after `first`."""
    joint, ledger = JoinReplies(), Ledger()
    events = feed_all(joint, Started("a", "m"), Opened(0, TextBlock()), Delta(0, first))
    resume(joint)
    joint.accept_continuation(ledger)
    deltas = [Delta(0, piece) for piece in continuation]
    events += feed_all(joint, Started("b", "n"), Opened(0, TextBlock()), *deltas, Closed(0), end)
    assert events[-1] == end
    return text_of(events), ledger


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def test_a_reply_with_text_can_be_continued() -> None:
    joint = make_begun()
    assert joint.can_be_continued
    assert joint.text == TEXT


def test_a_reply_without_text_cannot_be_continued() -> None:
    joint = JoinReplies()
    feed_all(joint, Started("a", "m"), Opened(0, TextBlock()))
    assert not joint.can_be_continued


@pytest.mark.parametrize("closed", [(), (Closed(1),)], ids=["open", "closed"])
def test_a_reply_with_a_tool_call_cannot_be_continued(closed: tuple[Event, ...]) -> None:
    joint = make_begun(Opened(1, CallBlock("c", "tool")), Delta(1, "{}"), *closed)
    assert not joint.can_be_continued


def test_the_next_upstreams_words_join_the_open_block() -> None:
    joint = make_begun()
    resume(joint)
    events = feed_all(joint, Started("b", "n"), Opened(0, TextBlock()), Delta(0, REST), Closed(0), Ended(Stop.END))
    assert events == [Delta(0, REST), Closed(0), Ended(Stop.END)]


def test_new_blocks_get_new_numbers() -> None:
    joint = make_begun(Closed(0))
    resume(joint)
    call = (Opened(1, CallBlock("c", "tool")), Delta(1, "{}"), Closed(1))
    events = feed_all(joint, Started("b", "n"), Opened(0, TextBlock()), Delta(0, REST), Closed(0), *call)
    assert events[:3] == [Opened(1, TextBlock()), Delta(1, REST), Closed(1)]
    assert events[3:] == [Opened(2, CallBlock("c", "tool")), Delta(2, "{}"), Closed(2)]


def test_a_thought_that_broke_off_is_closed() -> None:
    joint = make_begun(Opened(1, ThinkingBlock()), Delta(1, "Hm"))
    resume(joint)
    events = feed_all(joint, Started("b", "n"), Opened(0, TextBlock()), Delta(0, REST))
    assert events == [Closed(1), Delta(0, REST)]


def test_the_next_upstreams_thoughts_are_left_out() -> None:
    """A message that ends with a thought is refused by its vendor when the client sends it back."""
    joint = make_begun()
    resume(joint)
    thought = (
        Opened(0, ThinkingBlock()),
        Delta(0, "Hm"),
        OpaqueAdded(0, Opaque("anthropic", Form.SIGNATURE, "c2ln")),
        Closed(0),
    )
    words = (Opened(1, TextBlock()), Delta(1, REST), Closed(1))
    events = feed_all(joint, Started("b", "n"), *thought, *words, Ended(Stop.END))
    assert events == [Delta(0, REST), Closed(0), Ended(Stop.END)]


def test_a_continued_reply_can_break_off_again() -> None:
    joint = make_begun()
    resume(joint)
    feed_all(joint, Started("b", "n"), Opened(0, TextBlock()), Delta(0, REST))
    assert joint.text == TEXT + REST
    resume(joint)
    events = feed_all(joint, Started("c", "o"), Opened(0, TextBlock()), Delta(0, " Well."), Ended(Stop.END))
    assert events == [Delta(0, " Well."), Closed(0), Ended(Stop.END)]


def test_usage_is_summed_and_has_the_least_reliable_source() -> None:
    joint = make_begun()
    resume(joint)
    assert joint.used_before is None  # no upstream has continued yet
    joint.accept_continuation(Ledger())
    assert feed_all(joint, UsageReported(Usage(input=30, output=5))) == [
        UsageReported(Usage(input=50, output=14, cache_read=4, credits=0.5, source=Source.ESTIMATED))
    ]
    resume(joint, Usage(input=30, output=5))
    joint.accept_continuation(Ledger())
    assert joint.used_before == Usage(input=50, output=14, cache_read=4, credits=0.5, source=Source.ESTIMATED)


def test_a_failure_without_a_continuation_is_passed_on() -> None:
    joint = make_begun()
    assert feed_all(joint, LOST) == [LOST]


def test_an_end_while_text_is_held_loses_none_of_it() -> None:
    joint = make_begun()
    resume(joint)
    events = feed_all(joint, Started("b", "n"), Opened(0, TextBlock()), Delta(0, "The"), Ended(Stop.END))
    assert text_of(events) == "The"
    assert events[-1] == Ended(Stop.END)


ROW = "| 12 | the same in every row |\n"
ROWS = ROW * 6
assert len(ROW) == 31
REPETITIVE = [
    ROWS,
    ROWS[:181],
    "a" * 120,
    "ab" * 60,
    "na na na na na na na na Batman! " * 4,
    "def f():\n    pass\n\n\n" * 6 + "f()\n",
    "0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1",
    "Row row row your boat, row row row your boat, gently down the stream.",
    "the same sentence twice. the same sentence twice. and then another.",
]
repetitive = st.builds(
    lambda rows, times, tail: "".join(rows) * times + tail,
    st.lists(
        st.sampled_from(["ab", "a", "x\n", "the same row of a table\n", "[[", "[[continue:", "]]"]),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 6),
    st.text("ab\n[c", max_size=20),
)
cuts_of = st.lists(st.integers(1, 60), max_size=8)


@each_row("text", REPETITIVE)
@each_row("size", [1, 7, 1000])
def test_an_exact_continuation_loses_nothing_wherever_the_reply_broke_off(text: str, size: int) -> None:
    for place in range(1, len(text)):
        rest = text[place:]
        whole, ledger = read_continued(text[:place], [rest[at : at + size] for at in range(0, len(rest), size)])
        assert whole == text, place
        assert list(ledger) == []


@given(repetitive, st.integers(1), cuts_of)
def test_an_exact_continuation_of_any_repetitive_text_loses_nothing(text: str, place: int, cuts: list[int]) -> None:
    place %= len(text)
    whole, ledger = read_continued(text[:place] or "x", pieces(text[place:], cuts))
    assert whole == (text[:place] or "x") + text[place:]
    assert list(ledger) == []


@given(repetitive, st.integers(1), cuts_of)
def test_an_exact_continuation_after_the_marker_loses_nothing(text: str, place: int, cuts: list[int]) -> None:
    place = place % len(text) or 1
    whole, ledger = read_continued(text[:place], pieces(MARKER + text[place:], cuts))
    assert whole == text
    assert list(ledger) == []


@given(st.integers(1, len(TEXT)), cuts_of)
def test_a_repetition_before_the_marker_is_left_out_and_noted(size: int, cuts: list[int]) -> None:
    whole, ledger = read_continued(TEXT, pieces(TEXT[-size:] + MARKER + REST, cuts))
    assert whole == TEXT + REST
    [loss] = ledger
    assert (loss.path, loss.how.value) == ("/text", "dropped")
    assert f"{size} characters" in loss.why


@given(st.integers(1, len(TEXT)), cuts_of)
def test_a_repetition_without_the_marker_is_kept(size: int, cuts: list[int]) -> None:
    """It may as well be what the reply goes on with."""
    again = TEXT[-size:] + REST
    whole, ledger = read_continued(TEXT, pieces(again, cuts))
    assert whole == TEXT + again
    assert list(ledger) == []


@given(cuts_of)
def test_other_words_before_the_marker_are_kept(cuts: list[int]) -> None:
    whole, ledger = read_continued(TEXT, pieces(f"Sure, I go on: {MARKER}{REST}", cuts))
    assert whole == f"{TEXT}Sure, I go on: {REST}"
    assert list(ledger) == []


@given(st.integers(1, len(ROWS)), cuts_of)
def test_a_marker_at_the_end_makes_nothing_a_repetition(size: int, cuts: list[int]) -> None:
    whole, _ = read_continued(ROWS, pieces(ROWS[-size:] + MARKER, cuts))
    assert whole == ROWS + ROWS[-size:]


@given(cuts_of)
def test_the_beginning_of_a_marker_at_the_end_is_kept(cuts: list[int]) -> None:
    whole, _ = read_continued(TEXT, pieces(REST + MARKER[:9], cuts))
    assert whole == TEXT + REST + MARKER[:9]


def test_held_text_is_passed_on_before_a_final_failure() -> None:
    joint = make_begun()
    resume(joint)
    feed_all(joint, Started("b", "n"), Opened(0, TextBlock()), Delta(0, "The"))
    assert feed_all(joint, LOST) == [Delta(0, "The"), LOST]


def test_an_upstream_that_failed_before_its_first_word_leaves_nothing_behind() -> None:
    joint = make_begun(Opened(1, ThinkingBlock()), Delta(1, "Hm"))
    resume(joint)
    assert feed_all(joint, Started("b", "n"), Opened(0, ThinkingBlock())) == []
    joint.begin_continuation(MARKER)  # the next target gets the same request
    events = feed_all(joint, Started("c", "o"), Opened(0, TextBlock()), Delta(0, REST), Closed(0), CLEAN)
    assert events == [Closed(1), Delta(0, REST), Closed(0), CLEAN]


def test_thoughts_that_are_left_out_are_noted() -> None:
    joint, ledger = make_begun(), Ledger()
    resume(joint)
    feed_all(joint, Started("b", "n"), Opened(0, ThinkingBlock()), Delta(0, "Hm"), Closed(0))
    joint.accept_continuation(ledger)  # which is known once the first token is there
    assert [(loss.path, loss.how.value) for loss in ledger] == [("/thinking", "dropped")]


def test_text_is_held_no_longer_than_it_may_be_a_repetition() -> None:
    start = ContinuationStart(TEXT, MARKER)
    assert start.feed("The quick ") == ""
    assert start.feed("red fox") == "The quick red fox"
    assert start.feed(" [[contin") == " "
    assert start.feed("ues") == "[[continues"

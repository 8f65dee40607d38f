"""A reply that breaks off is continued by another as if it were one; what cannot be continued fails at once."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dragoman.translate.hub.events import (
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
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.usage import Usage, UsageSource
from dragoman.translate.stages.join_replies import ContinuationStart, JoinReplies
from replies import call, text
from tables import each_row

LOST = Failed(Failure(Kind.LOST, "the connection broke"))
TEXT = "The quick brown fox jumps over the lazy dog, and then it "
REST = "sleeps in the sun."
CLEAN = Ended(Stop.END)
MARKER = "[[continue:0123456789ab]]"
SPENT = Usage(input=20, output=9, cache_read=4, credits=0.5, source=UsageSource.ESTIMATED)


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


def test_a_reply_with_text_and_without_a_call_can_be_continued() -> None:
    joint = make_begun()
    assert (joint.can_be_continued, joint.text) == (True, TEXT)
    joint = JoinReplies()
    feed_all(joint, Started("a", "m"), Opened(0, TextBlock()))
    assert not joint.can_be_continued
    for open_or_closed in (call(1, "tool", "{}")[:-1], call(1, "tool", "{}")):
        assert not make_begun(*open_or_closed).can_be_continued


THOUGHT = (Opened(0, ThinkingBlock()), Delta(0, "Hm"))
SEAL = OpaqueAdded(0, Opaque("anthropic", OpaqueForm.SIGNATURE, "c2ln"))


@each_row(
    ("rule", "begun", "continuation", "expected"),
    [
        ("words join the open block", (), (*text(0, REST), CLEAN), [Delta(0, REST), Closed(0), CLEAN]),
        (
            "new blocks get new numbers",
            (Closed(0),),
            (*text(0, REST), *call(1, "tool", "{}")),
            [*text(1, REST), Opened(2, CallBlock("call-1", "tool")), Delta(2, "{}"), Closed(2)],
        ),
        (
            "a thought that broke off is closed",
            (Opened(1, ThinkingBlock()), Delta(1, "Hm")),
            text(0, REST)[:-1],
            [Closed(1), Delta(0, REST)],
        ),
        (  # a vendor refuses a message that ends with a thought when the client sends it back
            "the next upstream's thoughts are left out",
            (),
            (*THOUGHT, SEAL, Closed(0), *text(1, REST), CLEAN),
            [Delta(0, REST), Closed(0), CLEAN],
        ),
        ("a marker with nothing after it adds nothing", (), (*text(0, MARKER), CLEAN), [Closed(0), CLEAN]),
        ("an empty continuation adds nothing", (), (CLEAN,), [Closed(0), CLEAN]),
        ("thoughts alone add nothing", (), (*THOUGHT, Closed(0), CLEAN), [Closed(0), CLEAN]),
        (
            "a call follows the text",
            (),
            (*call(0, "tool", "{}"), Ended(Stop.TOOL)),
            [Closed(0), Opened(1, CallBlock("call-0", "tool")), Delta(1, "{}"), Closed(1), Ended(Stop.TOOL)],
        ),
        (
            "a call follows a marker",
            (),
            (*text(0, MARKER), *call(1, "tool", "{}"), Ended(Stop.TOOL)),
            [Closed(0), Opened(1, CallBlock("call-1", "tool")), Delta(1, "{}"), Closed(1), Ended(Stop.TOOL)],
        ),
        (
            "a call may open before the text that it follows is closed",
            (),
            (*text(0, REST)[:-1], *call(1, "tool", "{}"), Closed(0), Ended(Stop.TOOL)),
            [
                *(Delta(0, REST), Opened(1, CallBlock("call-1", "tool")), Delta(1, "{}"), Closed(1), Closed(0)),
                Ended(Stop.TOOL),
            ],
        ),
        ("held text comes before an end", (), (*text(0, "The")[:-1], CLEAN), [Delta(0, "The"), Closed(0), CLEAN]),
        ("held text comes before a failure", (), (*text(0, "The")[:-1], LOST), [Delta(0, "The"), LOST]),
    ],
)
def test_a_continuation_goes_on_with_the_reply(
    rule: str, begun: Sequence[Event], continuation: Sequence[Event], expected: list[Event]
) -> None:
    joint = make_begun(*begun)
    resume(joint)
    assert feed_all(joint, Started("b", "n"), *continuation) == expected, rule


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
        UsageReported(Usage(input=50, output=14, cache_read=4, credits=0.5, source=UsageSource.ESTIMATED))
    ]
    resume(joint, Usage(input=30, output=5))
    joint.accept_continuation(Ledger())
    assert joint.used_before == Usage(input=50, output=14, cache_read=4, credits=0.5, source=UsageSource.ESTIMATED)


def test_a_failure_without_a_continuation_is_passed_on() -> None:
    joint = make_begun()
    assert feed_all(joint, LOST) == [LOST]


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


@given(st.integers(1, len(TEXT)), st.integers(1, len(ROWS)), cuts_of)
def test_what_may_be_what_the_reply_goes_on_with_is_kept(size: int, rows: int, cuts: list[int]) -> None:
    for begun, continuation, kept in (
        (TEXT, TEXT[-size:] + REST, TEXT[-size:] + REST),  # a repetition without the marker
        (TEXT, f"Sure, I go on: {MARKER}{REST}", f"Sure, I go on: {REST}"),
        (ROWS, ROWS[-rows:] + MARKER, ROWS[-rows:]),  # nothing follows the marker
        (TEXT, REST + MARKER[:9], REST + MARKER[:9]),
    ):
        whole, ledger = read_continued(begun, pieces(continuation, cuts))
        assert whole == begun + kept
        assert list(ledger) == []


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

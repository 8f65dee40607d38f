"""The end of a reply with a cut call waits; every other reply passes."""

from dragoman.hub.events import CallBlock, Closed, Delta, Ended, Event, Opened, Started, Stop, TextBlock, TruncatedCall
from dragoman.stages.hold_truncated_call import HoldTruncatedCall

CUT = (TruncatedCall("call_1", "write", '{"path": "x'),)
TEXT: list[Event] = [
    Started("r", "m"),
    Opened(0, TextBlock()),
    Delta(0, "Writing "),
    Delta(0, "now."),
    Closed(0),
    Opened(1, CallBlock("call_0", "read")),
    Delta(1, "{}"),
    Closed(1),
]


def test_an_end_with_a_truncated_call_is_held_with_the_text() -> None:
    hold = HoldTruncatedCall()
    passed = [out for event in [*TEXT, Ended(Stop.LENGTH, cut=CUT)] for out in hold.feed(event)]
    assert passed == TEXT
    assert hold.held == Ended(Stop.LENGTH, cut=CUT)
    assert hold.text == "Writing now."
    assert hold.next_block == 2


def test_an_ordinary_end_passes() -> None:
    hold = HoldTruncatedCall()
    events = [*TEXT, Ended(Stop.TOOL)]
    assert [out for event in events for out in hold.feed(event)] == events
    assert hold.held is None


def test_the_end_that_follows_the_held_one_passes() -> None:
    hold = HoldTruncatedCall()
    assert list(hold.feed(Ended(Stop.LENGTH, cut=CUT))) == []
    assert list(hold.feed(Ended(Stop.LENGTH))) == [Ended(Stop.LENGTH)]

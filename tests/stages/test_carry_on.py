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
    Opened,
    Sealed,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    Used,
)
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.usage import Source, Usage
from dragoman.stages.carry_on import CarryOn, Repeated

LOST = Failed(Failure(Kind.LOST, "the connection broke"))
SAID = "The quick brown fox jumps over the lazy dog, and then it "
REST = "sleeps in the sun."
SPENT = Usage(input=20, output=9, cache_read=4, credits=0.5, source=Source.ESTIMATED)


def told(carry: CarryOn, *events: Event) -> list[Event]:
    return [out for event in events for out in carry.feed(event)]


def begun(*after: Event) -> CarryOn:
    carry = CarryOn()
    told(carry, Started("a", "m"), Opened(0, TextBlock()), Delta(0, SAID), *after, LOST)
    return carry


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def test_a_failure_after_words_is_held_back() -> None:
    carry = begun()
    assert carry.broken == LOST.failure
    assert carry.said == SAID


def test_a_failure_before_any_word_is_told() -> None:
    assert told(CarryOn(), Started("a", "m"), LOST)[-1] == LOST


@pytest.mark.parametrize("closed", [(), (Closed(1),)], ids=["open", "closed"])
def test_after_a_tool_call_nobody_goes_on(closed: tuple[Event, ...]) -> None:
    carry = CarryOn()
    call = (Opened(1, CallBlock("c", "tool")), Delta(1, "{}"), *closed)
    events = told(carry, Started("a", "m"), Opened(0, TextBlock()), Delta(0, SAID), *call, LOST)
    assert events[-1] == LOST
    assert carry.broken is None


def test_the_next_upstreams_words_join_the_open_block() -> None:
    carry = begun()
    carry.resume(SPENT)
    events = told(carry, Started("b", "n"), Opened(0, TextBlock()), Delta(0, REST), Closed(0), Ended(Stop.END))
    assert events == [Delta(0, REST), Closed(0), Ended(Stop.END)]


def test_new_blocks_get_new_numbers() -> None:
    carry = begun(Closed(0))
    carry.resume(SPENT)
    call = (Opened(1, CallBlock("c", "tool")), Delta(1, "{}"), Closed(1))
    events = told(carry, Started("b", "n"), Opened(0, TextBlock()), Delta(0, REST), Closed(0), *call)
    assert events[:3] == [Opened(1, TextBlock()), Delta(1, REST), Closed(1)]
    assert events[3:] == [Opened(2, CallBlock("c", "tool")), Delta(2, "{}"), Closed(2)]


def test_a_thought_that_broke_off_is_closed() -> None:
    carry = begun(Opened(1, ThinkingBlock()), Delta(1, "Hm"))
    carry.resume(SPENT)
    assert told(carry, Started("b", "n")) == [Closed(1)]


def test_the_next_upstreams_thoughts_are_left_out() -> None:
    """A message that ends with a thought is refused by its vendor when the client sends it back."""
    carry = begun()
    carry.resume(SPENT)
    thought = (
        Opened(0, ThinkingBlock()),
        Delta(0, "Hm"),
        Sealed(0, Opaque("anthropic", Form.SIGNATURE, "c2ln")),
        Closed(0),
    )
    words = (Opened(1, TextBlock()), Delta(1, REST), Closed(1))
    events = told(carry, Started("b", "n"), *thought, *words, Ended(Stop.END))
    assert events == [Delta(0, REST), Closed(0), Ended(Stop.END)]


def test_it_can_break_off_again() -> None:
    carry = begun()
    carry.resume(SPENT)
    told(carry, Started("b", "n"), Opened(0, TextBlock()), Delta(0, REST), LOST)
    assert carry.said == SAID + REST
    carry.resume(SPENT)
    events = told(carry, Started("c", "o"), Opened(0, TextBlock()), Delta(0, " Well."), Ended(Stop.END))
    assert events == [Delta(0, " Well."), Ended(Stop.END)]


def test_what_all_of_them_used_is_told_and_no_better_known_than_the_worst() -> None:
    carry = begun()
    carry.resume(SPENT)
    assert carry.spent is None  # nobody has gone on yet
    carry.gone_on()
    assert told(carry, Used(Usage(input=30, output=5))) == [
        Used(Usage(input=50, output=14, cache_read=4, credits=0.5, source=Source.ESTIMATED))
    ]
    carry.resume(Usage(input=30, output=5))
    carry.gone_on()
    assert carry.spent == Usage(input=50, output=14, cache_read=4, credits=0.5, source=Source.ESTIMATED)


def test_sealed_it_tells_the_failure() -> None:
    carry = begun()
    carry.seal()
    assert told(carry, LOST) == [LOST]


def test_an_end_while_words_are_held_loses_none_of_them() -> None:
    carry = begun()
    carry.resume(SPENT)
    events = told(carry, Started("b", "n"), Opened(0, TextBlock()), Delta(0, "The"), Ended(Stop.END))
    assert text_of(events) == "The"
    assert events[-1] == Ended(Stop.END)


@given(st.integers(16, len(SAID)), st.lists(st.integers(1, 60), max_size=8))
def test_what_is_said_again_is_said_once(size: int, cuts: list[int]) -> None:
    again = SAID[-size:] + REST
    places = sorted({0, len(again), *(cut % len(again) for cut in cuts)})
    deltas = [Delta(0, again[start:end]) for start, end in pairwise(places)]
    carry = begun()
    carry.resume(SPENT)
    events = told(carry, Started("b", "n"), Opened(0, TextBlock()), *deltas, Closed(0), Ended(Stop.END))
    assert text_of(events) == REST


@given(st.text(max_size=40), st.lists(st.text(max_size=12), max_size=6))
def test_words_that_repeat_nothing_all_go_out(said: str, more: list[str]) -> None:
    repeated = Repeated(said)
    out = ""
    for index, text in enumerate(more):
        fresh = repeated.feed(text)
        if fresh is not None:
            out = fresh + "".join(more[index + 1 :])
            break
    else:
        out = repeated.rest()
    whole = "".join(more)
    assert whole.endswith(out)
    assert said.endswith(whole[: len(whole) - len(out)])
    assert len(whole) - len(out) == 0 or len(whole) - len(out) >= Repeated.AT_LEAST

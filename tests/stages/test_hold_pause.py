"""A pause is held, and every other end passes."""

import pytest

from dragoman.hub.events import Closed, Delta, Ended, Event, Opened, Started, Stop, TextBlock
from dragoman.stages.hold_pause import HoldPause

TEXT: list[Event] = [Started("msg_1", "m"), Opened(0, TextBlock()), Delta(0, "so"), Closed(0)]


def test_a_pause_is_held_with_the_reply_so_far() -> None:
    stage = HoldPause()
    passed = [out for event in [*TEXT, Ended(Stop.PAUSE)] for out in stage.feed(event)]
    assert passed == TEXT
    assert stage.end == Ended(Stop.PAUSE)
    assert stage.events == [*TEXT, Ended(Stop.PAUSE)]


@pytest.mark.parametrize("stop", [stop for stop in Stop if stop is not Stop.PAUSE])
def test_any_other_end_passes(stop: Stop) -> None:
    stage = HoldPause()
    passed = [out for event in [*TEXT, Ended(stop)] for out in stage.feed(event)]
    assert passed == [*TEXT, Ended(stop)]
    assert stage.end is None

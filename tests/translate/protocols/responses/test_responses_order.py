"""Items that come whole, in any order, are sent in the order of their index."""

from itertools import permutations

import msgspec
import pytest

from dragoman.translate.framing.sse import Frame
from dragoman.translate.hub.events import Delta, Ended, Event, Stop
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.protocols.responses.decode import Decoder

TEXTS = ("one", "two", "three")


def frame(**event: object) -> Frame:
    return Frame("", msgspec.json.encode(event))


def make_done_frame(index: int) -> Frame:
    content = [{"type": "output_text", "text": TEXTS[index], "annotations": []}]
    item = {"type": "message", "role": "assistant", "content": content}
    return frame(type="response.output_item.done", output_index=index, item=item)


END = frame(type="response.completed", response={"status": "completed", "output": []})


def decode(*frames: Frame) -> list[Event]:
    machine = Decoder(Issuer("codex", "m"), Ledger())
    events = [event for item in frames for event in machine.feed(item)]
    return [*events, *machine.finish()]


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Delta)]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_items_come_out_in_their_order(order: tuple[int, ...]) -> None:
    events = decode(*(make_done_frame(index) for index in order), END)
    assert texts(events) == list(TEXTS)
    assert events[-1] == Ended(Stop.END)


def test_an_item_that_is_next_is_sent_at_once() -> None:
    machine = Decoder(Issuer("codex", "m"), Ledger())
    assert texts([*machine.feed(make_done_frame(0))]) == ["one"]
    assert texts([*machine.feed(make_done_frame(2))]) == []
    assert texts([*machine.feed(make_done_frame(1))]) == ["two", "three"]


def test_indexes_with_gaps_lose_nothing() -> None:
    assert texts(decode(make_done_frame(2), make_done_frame(0), END)) == ["one", "three"]


def test_an_item_that_streams_is_not_held() -> None:
    delta = frame(type="response.output_text.delta", output_index=2, content_index=0, delta="thr")
    machine = Decoder(Issuer("codex", "m"), Ledger())
    assert texts([*machine.feed(delta)]) == ["thr"]
    assert texts([*machine.feed(make_done_frame(2))]) == []

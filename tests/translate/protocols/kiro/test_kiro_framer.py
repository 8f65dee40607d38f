"""Frames or text: the first bytes decide, the same way however they are cut, and damage is never taken for text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.framing.eventstream import EventStreamMessage
from dragoman.translate.framing.sse import Broken
from dragoman.translate.protocols.kiro.decode import KiroFramer
from laws import assert_any_cut_agrees, assert_linear, assert_total, run
from translate.protocols.kiro.kiro_replies import TAIL, text_event

FRAMED = text_event("é日😀", "b") + TAIL
HI = EventStreamMessage({}, b'{"content":"Hi"}')


def read(data: bytes) -> list[EventStreamMessage | Broken]:
    return run(KiroFramer(), [data])


@pytest.mark.parametrize(
    "text",
    [
        b'{"content":"Hi"}',
        b'\r\n\t  {"content":"Hi"}\n',
        b'[{"content":"Hi"}]',
        b'\xef\xbb\xbf{"content":"Hi"}',
        b'data: {"content":"Hi"}\n\n',
        b':event-type assistantResponseEvent {"content":"Hi"} :message-type event',
        '日本語 {"content":"Hi"}'.encode(),
    ],
)
def test_objects_are_taken_from_text(text: bytes) -> None:
    assert read(text) == [HI]
    assert_any_cut_agrees(KiroFramer, text)


def test_frames_are_read_as_frames() -> None:
    messages = read(FRAMED)
    assert len(messages) == 5
    assert all(isinstance(message, EventStreamMessage) and message.headers for message in messages)
    assert_any_cut_agrees(KiroFramer, FRAMED)


def test_a_frame_whose_first_byte_is_damaged_is_sent_at_once_and_is_no_text() -> None:
    for byte in range(1, 256):
        damaged = bytes([byte]) + FRAMED[1:]
        assert KiroFramer().feed(damaged[:12]) == [Broken("the checksum of a frame's prelude is wrong")]


@pytest.mark.parametrize(("short", "found"), [(b"", []), (b"{}", [EventStreamMessage({}, b"{}")]), (b"ab", [])])
def test_a_body_shorter_than_a_prelude_is_text(short: bytes, found: list[EventStreamMessage]) -> None:
    assert read(short) == found


def test_what_is_cut_is_recorded() -> None:
    assert read(FRAMED[:5]) == [Broken("ended inside a frame")]
    assert read(b'{"content":"Hi"') == [Broken("ended inside an object")]
    assert read(b'{"a"') == [Broken("ended inside an object")]


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_any_bytes_are_taken_in_any_cut(junk: bytes) -> None:
    assert_total(KiroFramer, junk)
    assert_any_cut_agrees(KiroFramer, junk)


def test_choosing_costs_nothing_that_grows() -> None:
    assert_linear(KiroFramer, FRAMED, 200)
    assert_linear(KiroFramer, b'{"content":"Hi"}', 1_000)

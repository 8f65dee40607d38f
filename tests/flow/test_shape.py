"""Whether an answer is a stream of events or one document: by its name, and by its first bytes."""

import pytest

from dragoman.flow.shape import begins_document, begins_events, is_named_stream, is_stream
from dragoman.hub.ports import Upstream
from dragoman.net.headers import Headers
from dragoman.protocols import PROTOCOLS


def upstream(name: str) -> Upstream:
    found = PROTOCOLS[name].upstream
    assert found is not None
    return found


CHAT, KIRO = upstream("chat"), upstream("kiro")


def named(content_type: bytes | None) -> Headers:
    return Headers([] if content_type is None else [(b"content-type", content_type)])


@pytest.mark.parametrize(
    ("content_type", "is_one"),
    [
        (b"text/event-stream", True),
        (b"text/event-stream; charset=utf-8", True),
        (b"application/vnd.amazon.eventstream", True),
        (None, True),  # whoever was asked for a stream sends one
        (b"application/json", False),
        (b"Application/JSON; charset=utf-8", False),
        (b"text/html", False),
        (b"text/plain", False),
    ],
)
def test_a_document_is_known_by_its_name(content_type: bytes | None, is_one: bool) -> None:
    assert is_named_stream(named(content_type)) is is_one


@pytest.mark.parametrize(
    ("begun", "document", "events"),
    [
        (b'{"id":', True, False),
        (b"\n  <html>", True, False),
        (b"data: {}", False, True),
        (b"event: message_start\n", False, True),
        (b": keep-alive\n\n", False, True),
        (b"\xef\xbb\xbfdata: {}", False, True),
        (b"\r\nid: 1", False, True),
        (b"upstream connect error", False, False),
        (b"", False, False),
    ],
)
def test_what_the_first_bytes_say(begun: bytes, document: bool, events: bool) -> None:
    assert begins_document(CHAT, begun) is document
    assert begins_events(CHAT, begun) is events


def test_binary_frames_begin_with_anything() -> None:
    """A length of 0x7b bytes is no brace."""
    assert not begins_document(KIRO, b"{\0\0\0")
    assert not begins_events(KIRO, b":\0\0\0")


@pytest.mark.parametrize(
    ("content_type", "body", "streamed"),
    [
        (b"text/event-stream", b"data: {}\n\n", True),
        (b"text/event-stream", b'{"error":{}}', False),
        (b"application/json", b'{"id":1}', False),
        (b"application/json", b"data: {}\n\n", True),
        (b"text/plain", b"Bad gateway", False),
    ],
)
def test_where_name_and_bytes_disagree_the_bytes_are_believed(content_type: bytes, body: bytes, streamed: bool) -> None:
    assert is_stream(CHAT, named(content_type), body) is streamed

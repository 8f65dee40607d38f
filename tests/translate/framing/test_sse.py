"""The SSE framer against the WHATWG rules, the streams of real servers, and the laws."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.framing.sse import KEEP_ALIVE, Broken, Frame, SseFramer, encode_event
from laws import assert_any_cut_agrees, assert_bounded, assert_linear, assert_total, cut, random_cuts, run
from tables import each_row

CHAT = (
    'data: {"id":"c1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"Grüße 😀👩‍👩‍👧 漢字"}}]}\n\n'
    ": keep-alive\n\n"
    'data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    "data: [DONE]\n\n"
).encode()
MESSAGES = (
    'event: message_start\ndata: {"type":"message_start"}\n\n'
    'event: ping\ndata: {"type": "ping"}\n\n'
    'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"é😀"}}\n\n'
    'event: message_stop\ndata: {"type":"message_stop"}\n\n'
).encode()
ODD = (
    b"\xef\xbb\xbf: hello\r\r\nretry: 10\rid: 7\n\r\ndata:one\rdata: two\r\ndata:  three\n\n\n\n"
    b"event:named\r\ndata\r\n\r\nnonsense\ndata : no\n:c\nevent: x\n\nevent: last\ndata: \xf0\x9f\x98\x80\xff\x00\r\n\r"
    b"data: [DONE]"
)


def read(data: bytes) -> list[Frame | Broken]:
    return run(SseFramer(), [data])


def texts(data: bytes) -> list[bytes]:
    return [item.data for item in read(data) if isinstance(item, Frame)]


# The rules


@each_row("first", [b"\n", b"\r", b"\r\n"])
@each_row("second", [b"\n", b"\r", b"\r\n"])
def test_a_line_may_end_in_lf_cr_or_crlf_even_within_one_event(first: bytes, second: bytes) -> None:
    stream = b"event: a" + first + b"data: 1" + first + b"data: 2" + second + second + b"data: 3" + first + first
    assert SseFramer().feed(stream) == [Frame("a", b"1\n2"), Frame("", b"3")]


UNFINISHED = (b"data:", b"data: ", b"dat", b"event: message_stop\n", b"event: message_stop\ndata:", b": c", b"id: 1\n")


@each_row(
    ("rule", "stream", "expected"),
    [
        ("LF, CR are two line ends and CR, LF is one", b"data: 1\n\rdata: 2\r\ndata: 3\n\n", [b"1", b"2\n3"]),
        ("LF LF and CRLF CRLF both end", b"data: 1\r\n\r\ndata: 2\n\ndata: 3\r\n\r\n", [b"1", b"2", b"3"]),
        ("a byte order mark is stripped", b"\xef\xbb\xbfdata: 1\n\n", [b"1"]),
        ("only one is stripped", b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\ndata: 2\n\n", [b"2"]),
        ("and only at the start", b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n", [b"1"]),
        ("half of one is an unknown field", b"\xef\xbbdata: 1\n\ndata: 2\n\n", [b"2"]),
        ("half of one alone is nothing", b"\xef\xbb", []),
        ("several data lines are joined by LF", b"data: a\ndata:b\ndata: \ndata: c\n\n", [b"a\nb\n\nc"]),
        ("one leading space goes", b"data:x\n\ndata: x\n\ndata:  x \n\ndata:\tx\n\n", [b"x", b"x", b" x ", b"\tx"]),
        ("what follows the first colon is the value", b"data: a: b:c\n\n", [b"a: b:c"]),
        ("a field without colon has an empty value", b"data\n\ndata\ndata\n\ndata:", [b"", b"\n"]),
        ("field names are exact", b"Data: 1\n\n data: 2\n\ndata : 3\n\ndatax: 4\n\nxdata: 5\n\n", []),
        ("controls are kept", b"data: a\x00b\x0b\x0c\x1e\x85\n\n", ["a\x00b\x0b\x0c\x1e\ufffd".encode()]),
        (
            "Unicode separators end no line",
            "data: a\u2028b\u2029c\x85d\n\n".encode(),
            ["a\u2028b\u2029c\x85d".encode()],
        ),
        ("a wrong byte costs one character", b'data: {"a":"x\xffy"}\n\n', ['{"a":"x\ufffdy"}'.encode()]),
        ("and in its own event only", b"data: 1\n\ndata: \xc3\n\ndata: 2\n\n", [b"1", "\ufffd".encode(), b"2"]),
        ("a character cut off by the end is replaced", "data: é".encode()[:-1], ["\ufffd".encode()]),
        *(("no data yet is no event", b"data: 1\n\n" + tail, [b"1"]) for tail in UNFINISHED),
        *(
            ("a last blank line may be missing", b"data: [DONE]" + end, [b"[DONE]"])
            for end in (b"", b"\n", b"\r", b"\r\n")
        ),
    ],
)
def test_data_is_read_by_the_rules(rule: str, stream: bytes, expected: list[bytes]) -> None:
    assert texts(stream) == expected, rule


def test_cr_and_lf_of_two_reads_are_one_line_end() -> None:
    framer = SseFramer()
    assert framer.feed(b"data: 1\r") == []
    assert framer.feed(b"\ndata: 2\r") == []
    assert framer.feed(b"\n\r") == [Frame("", b"1\n2")]
    assert framer.feed(b"\ndata: 3\n\n") == [Frame("", b"3")]


def test_an_empty_read_between_cr_and_lf_changes_nothing() -> None:
    assert run(SseFramer(), [b"data: 1\r", b"", b"\n", b"", b"data: 2\r", b"\n\r", b"", b"\n"]) == [Frame("", b"1\n2")]


def test_an_event_is_complete_at_the_cr_that_ends_it() -> None:
    assert SseFramer().feed(b"data: 1\r\r") == [Frame("", b"1")]


def test_a_byte_order_mark_split_over_reads_is_stripped() -> None:
    for pieces in ([b"\xef", b"\xbb\xbfdata: 1\n\n"], [b"\xef\xbb", b"\xbf", b"data: 1\n\n"]):
        assert run(SseFramer(), pieces) == [Frame("", b"1")]


@each_row(
    ("rule", "stream", "expected"),
    [
        ("comments are ignored", b": hi\n\n:\n\ndata: 1\n: in between\ndata: 2\n\n", [Frame("", b"1\n2")]),
        ("so is a keep-alive", KEEP_ALIVE, []),
        ("retry or id alone are nothing", b"retry: 3\n\nid: 5\n\nid\n\nretry\n\ndata: 1\n\n", [Frame("", b"1")]),
        ("beside data they are ignored", b"id: 5\nretry: 1\ndata: 1\nid: \x00\n\n", [Frame("", b"1")]),
        ("a name without data does not stick", b"event: ping\n\ndata: 1\n\n", [Frame("", b"1")]),
        ("the last name of a block counts", b"event: a\ndata: 1\nevent: b\n\n", [Frame("b", b"1")]),
        ("an empty one, too", b"event: a\nevent\ndata: 1\n\n", [Frame("", b"1")]),
        ("a wrong byte in it is replaced", b"event: \xff\ndata: 1\n\n", [Frame("\ufffd", b"1")]),
        ("an empty stream is no event", b"", []),
    ],
)
def test_names_and_other_fields_are_read_by_the_rules(rule: str, stream: bytes, expected: list[Frame]) -> None:
    assert read(stream) == expected, rule


def test_any_number_of_blank_lines_separates_events() -> None:
    for blank in range(1, 7):
        assert texts(b"\n" * (blank - 1) + b"data: 1\n" + b"\n" * blank + b"data: 2\n\n") == [b"1", b"2"]


def test_an_encoded_lone_surrogate_becomes_valid_text() -> None:
    (data,) = texts(b'data: {"a":"\xed\xa0\xbd"}\n\n')
    assert set(msgspec.json.decode(data)["a"]) == {"\ufffd"}


# Bounds


def test_an_event_too_large_breaks_the_stream_after_the_good_ones_and_nothing_follows() -> None:
    framer = SseFramer(max_event_bytes=20)
    frames = framer.feed(b"data: 1\n\ndata: " + b"x" * 15 + b"\n\ndata: 2\n\n")
    assert frames == [Frame("", b"1"), Broken("an event is larger than 20 bytes")]
    assert framer.feed(b"data: 3\n\n") == []
    assert framer.finish() == []


def test_a_line_that_never_ends_breaks_the_stream_once() -> None:
    framer = SseFramer(max_event_bytes=1000)
    out = [item for _ in range(500) for item in framer.feed(b"x" * 7)]
    assert out == [Broken("an event is larger than 1000 bytes")]


@each_row("size", range(12, 24))
def test_the_bound_does_not_depend_on_the_cut(size: int) -> None:
    stream = b"data: 1\n\n\ndata: " + b"x" * (size - 6) + b"\n\ndata: 2\n\n" + b"data: " + b"y" * (size - 6)
    assert_any_cut_agrees(lambda: SseFramer(max_event_bytes=17), stream)


def test_an_event_of_exactly_the_bound_passes() -> None:
    stream = b"data: " + b"x" * 14 + b"\n\n"
    assert run(SseFramer(max_event_bytes=20), [stream]) == [Frame("", b"x" * 14)]


def test_many_small_events_in_one_large_read_pass_the_bound() -> None:
    assert len(run(SseFramer(max_event_bytes=20), [b"data: 1\n\n" * 50])) == 50


def test_an_endless_line_is_not_kept() -> None:
    assert_bounded(lambda: SseFramer(max_event_bytes=10_000), (b"x" * 999 + b"%d" % n for n in range(2000)), 100_000)


@each_row(("piece", "count"), [(b"x" * 1400, 4000), (b"data: x\n", 8000), (b"\n", 20_000)])
def test_long_lines_and_many_lines_take_linear_time(piece: bytes, count: int) -> None:
    assert_linear(lambda: SseFramer(max_event_bytes=1 << 30), piece, count)


# Laws


@pytest.mark.parametrize("stream", [CHAT, MESSAGES, ODD, CHAT.replace(b"\n", b"\r\n"), CHAT.replace(b"\n", b"\r")])
def test_any_cut_gives_the_same_events(stream: bytes) -> None:
    assert_any_cut_agrees(SseFramer, stream)


def test_an_unusual_stream_is_read_according_to_the_standard() -> None:
    assert read(ODD) == [
        Frame("", b"one\ntwo\n three"),
        Frame("named", b""),
        Frame("last", "😀\ufffd\x00".encode()),
        Frame("", b"[DONE]"),
    ]


@given(random_cuts(CHAT + ODD))
@settings(max_examples=60, deadline=None)
def test_random_cuts_give_the_same_events(pieces: list[bytes]) -> None:
    assert run(SseFramer(), pieces) == read(CHAT + ODD)


SOUP = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"\r\n", b"data", b"event", b":", b" ", b"x", b"\xef\xbb\xbf", b"\xc3", b"\x00", b"id"]
    ),
    max_size=40,
).map(b"".join)


def parse_by_whatwg(stream: bytes) -> list[Frame | Broken]:
    """The WHATWG algorithm, line by line, with our rule for the end."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    frames: list[Frame | Broken] = []
    event, data = b"", b""
    for line in text.removesuffix(b"\n").split(b"\n") if text else []:
        field, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if line == b"":
            if data:
                frames.append(Frame(event.decode(errors="replace"), data[:-1].decode(errors="replace").encode()))
            event, data = b"", b""
        elif field == b"event":
            event = value
        elif field == b"data":
            data += value + b"\n"
    if len(data) > 1:
        frames.append(Frame(event.decode(errors="replace"), data[:-1].decode(errors="replace").encode()))
    return frames


@given(SOUP, st.lists(st.integers(0, 200), max_size=8))
@settings(max_examples=100, deadline=None)
def test_random_lines_are_read_as_the_standard_requires_in_any_cut(stream: bytes, points: list[int]) -> None:
    pieces = cut(stream, [min(point, len(stream)) for point in points])
    assert run(SseFramer(), pieces) == parse_by_whatwg(stream)


@given(st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_taken_without_an_exception(junk: bytes) -> None:
    assert_total(SseFramer, junk)


# Writing


def test_an_event_is_written_with_lf_only() -> None:
    assert encode_event(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert encode_event(b"{}", b"message_stop") == b"event: message_stop\ndata: {}\n\n"
    assert encode_event(b"a\r\nb\rc\n") == b"data: a\ndata: b\ndata: c\ndata: \n\n"


@given(st.text(), st.sampled_from(["", "response.created"]))
@settings(max_examples=60, deadline=None)
def test_what_is_written_reads_back(text: str, event: str) -> None:
    data = text.encode()
    plain = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert SseFramer().feed(encode_event(data, event.encode())) == [Frame(event, plain)]

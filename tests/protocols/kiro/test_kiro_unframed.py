"""Bodies without frames, and the laws that hold for every body."""

import msgspec

from dragoman.hub.events import Event, Failed, Opened
from dragoman.hub.failure import Kind
from dragoman.hub.loss import Ledger
from dragoman.protocols.kiro.decode import decode_whole
from fakes.eventstream import event
from laws import assert_any_cut_agrees, assert_linear
from protocols.kiro.kiro_replies import ISSUER, TAIL, Reader, make_reasoning, read, text_event, uses
from replies import join_deltas

RICH = b"".join(
    (
        event("initial-response", {}),
        event("messageMetadataEvent", {"conversationId": "c-1", "utteranceId": "u-1"}),
        make_reasoning(text="a"),
        make_reasoning(text="b"),
        make_reasoning(signature="S"),
        text_event("é日😀", "ha", "ha"),
        uses("A", "f"),
        uses("B", "g", input='{"b"'),
        uses("A", input='{"a":'),
        uses("B", input=":[]}"),
        uses("A", input="1}"),
        uses("A", stop=True),
        uses("B", stop=True),
        text_event("done"),
        TAIL,
    )
)


def failure_kind(stream: bytes) -> Kind:
    last = read(stream)[-1]
    assert isinstance(last, Failed)
    return last.failure.kind


# Bodies without frames


def join_payloads(*payloads: object) -> bytes:
    return b"\n".join(msgspec.json.encode(payload) for payload in payloads)


UNFRAMED = join_payloads(
    {"utteranceId": "u-1", "conversationId": "c-1"},
    {"text": "ab"},
    {"signature": "S"},
    {"content": "é日😀"},
    {"content": "haha", "modelId": "m"},
    {"followupPrompt": {"content": "no"}},
    {"name": "f", "toolUseId": "A"},
    {"name": "f", "toolUseId": "A", "input": '{"a":'},
    {"input": "1}"},
    {"stop": True},
    {"toolUseEvent": {"name": "g", "toolUseId": "B", "input": '{"b":[]}', "stop": True}},
    {"content": "done"},
    {
        "tokenUsage": {
            "uncachedInputTokens": 10,
            "cacheReadInputTokens": 2,
            "cacheWriteInputTokens": 1,
            "outputTokens": 5,
        }
    },
    {"contextUsagePercentage": 2.05},
    {"unit": "credit", "usage": 0.0148},
)


def test_a_body_of_bare_json_is_the_same_reply_as_its_frames() -> None:
    assert join_deltas(read(UNFRAMED)) == join_deltas(read(RICH))
    assert join_deltas(decode_whole(UNFRAMED, ISSUER, Ledger())) == join_deltas(read(RICH))
    assert join_deltas(read(b"data: " + UNFRAMED.replace(b"\n", b"\n\ndata: "))) == join_deltas(read(RICH))


def test_an_error_body_under_a_good_status_is_a_failure() -> None:
    body = b'{"__type":"com.amazon#ThrottlingException","message":"slow"}'
    (failed,) = decode_whole(body, ISSUER, Ledger())
    assert isinstance(failed, Failed)
    assert failed.failure.kind is Kind.RATE_LIMITED


def test_a_page_that_is_no_reply_is_a_failure() -> None:
    for body in (b"<html>no</html> and more", b"{}", b"x", b'{"odd":1}', b'{"content":"a'):
        assert isinstance(decode_whole(body, ISSUER, Ledger())[-1], Failed)


def test_a_text_cut_inside_an_object_is_truncation() -> None:
    assert failure_kind(UNFRAMED[:-1]) is Kind.TRUNCATED


# The laws


def test_any_cut_of_the_bytes_gives_the_same_events() -> None:
    assert_any_cut_agrees(Reader, RICH, join_deltas)
    assert_any_cut_agrees(Reader, UNFRAMED, join_deltas)


def test_the_whole_body_and_the_stream_agree() -> None:
    assert decode_whole(RICH, ISSUER, Ledger()) == read(RICH)


def test_reading_costs_linear_time() -> None:
    assert_linear(Reader, text_event("Hi"), 1_000)
    assert_linear(Reader, uses("A", "f", input="x"), 1_000)
    assert_linear(Reader, UNFRAMED, 50)


def test_blocks_open_in_order_and_close_before_the_next_opens() -> None:
    opened: int | None = None
    decoded: list[Event] = read(RICH)
    for one in decoded:
        if isinstance(one, Opened):
            assert opened is None
            opened = one.block
        elif type(one).__name__ == "Closed":
            opened = None
    assert opened is None
    assert [one.block for one in decoded if isinstance(one, Opened)] == [0, 1, 2, 3, 4]

"""How a Kiro reply ends: well, by its length, by an exception, or inside a frame; bodies without frames; laws."""

import pytest

from dragoman.translate.hub.events import Ended, Event, Failed, Opened, Stop, UsageReported
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.usage import MAX_COUNT, MAX_CREDITS
from dragoman.translate.protocols.kiro.decode import decode_whole
from fakes.eventstream import error, event, exception
from laws import assert_any_cut_agrees, assert_linear
from replies import join_deltas
from tables import each_row
from translate.protocols.kiro.kiro_replies import (
    ISSUER,
    LENIENT,
    TAIL,
    Reader,
    context,
    failure_of,
    make_reasoning,
    metadata,
    metering,
    read,
    reply,
    text_event,
    text_of,
    uses,
)


def read_ending(stream: bytes, issuer: Issuer = ISSUER) -> Ended:
    last = read(stream, issuer)[-1]
    assert isinstance(last, Ended)
    return last


HI, CALL = text_event("Hi"), uses("A", "f", input="{}", stop=True)


@each_row(
    ("stream", "stop"),
    [
        (HI + metadata("END_TURN"), Stop.END),
        (HI + metadata("TOOL_USE"), Stop.END),
        (HI + metadata("MAX_TOKENS"), Stop.LENGTH),
        (HI + metadata("STOP_SEQUENCE"), Stop.STOP_SEQUENCE),
        (HI + metadata("CONTENT_FILTERED"), Stop.FILTERED),
        (HI + metadata("MODEL_CONTEXT_WINDOW_EXCEEDED"), Stop.CONTEXT_FULL),
        (HI + metadata("PAUSE_TURN"), Stop.PAUSE),
        (HI + metadata("SOMETHING_NEW"), Stop.END),
        (HI + metadata() + context(100), Stop.CONTEXT_FULL),
        (HI + metadata("CONTENT_FILTERED") + context(100), Stop.FILTERED),
        (CALL + context(100), Stop.TOOL),
        (HI + metadata() + context(99.9), Stop.END),
        (HI + metadata(), Stop.END),
        (HI + context(1), Stop.END),
        (HI + metering(1), Stop.END),
        (HI, Stop.LENGTH),  # a tail that is missing was cut off
        (make_reasoning(text="Hm"), Stop.LENGTH),
        (CALL, Stop.TOOL),
    ],
)
def test_a_reply_ends_by_its_reason_and_its_tail(stream: bytes, stop: Stop) -> None:
    assert read_ending(stream) == Ended(stop)


def test_a_missing_tail_is_no_truncation_where_that_is_switched_off() -> None:
    assert read_ending(HI, LENIENT).stop is Stop.END


@each_row(
    "nothing",
    [b"", event("initial-response", {}), text_event(""), event("messageMetadataEvent", {"utteranceId": "u"})],
)
def test_an_empty_stream_is_a_failure_that_may_be_tried_again(nothing: bytes) -> None:
    events = read(nothing)
    assert (failure_of(events).kind, len(events)) == (Kind.TRUNCATED, 1)


def test_an_unknown_stop_reason_is_in_the_ledger() -> None:
    ledger = Ledger()
    read(text_event("Hi") + metadata("SOMETHING_NEW"), ledger=ledger)
    assert [loss.path for loss in ledger] == ["/stopReason"]


def test_a_reply_of_tail_events_only_has_no_content_and_ends_well() -> None:
    got = reply(TAIL)
    assert got.pieces == ()
    assert got.end == Ended(Stop.END)


TOO_LONG = {"message": "x", "reason": "CONTENT_LENGTH_EXCEEDS_THRESHOLD"}
NO_PLAN = {"reason": "INVALID_TASK_ASSIST_PLAN", "message": "no plan"}


@each_row(
    ("frame", "kind", "code"),
    [
        (exception("ValidationException", TOO_LONG), Kind.CONTEXT_TOO_LONG, "CONTENT_LENGTH_EXCEEDS_THRESHOLD"),
        (exception("ThrottlingException", b""), Kind.RATE_LIMITED, "ThrottlingException"),
        (error("InternalServerException", "went wrong"), Kind.UPSTREAM, "InternalServerException"),
        (error("ServiceUnavailableException", "busy"), Kind.OVERLOADED, "ServiceUnavailableException"),
        (event("error", {"message": "oops"}), Kind.UPSTREAM, "InternalServerException"),
        (event("invalidStateEvent", NO_PLAN), Kind.UPSTREAM, "INVALID_TASK_ASSIST_PLAN"),
        (event("invalidStateEvent", {"invalidStateEvent": NO_PLAN}), Kind.UPSTREAM, "INVALID_TASK_ASSIST_PLAN"),
    ],
)
def test_exceptions_errors_and_invalid_states_are_failures(frame: bytes, kind: Kind, code: str) -> None:
    (failed,) = read(frame)
    assert isinstance(failed, Failed)
    assert (failed.failure.kind, failed.failure.code) == (kind, code)


def test_an_end_inside_a_frame_is_truncation_and_a_broken_frame_corruption() -> None:
    stream = text_event("Hel", "lo")
    assert failure_of(read(stream[:-1])).kind is Kind.TRUNCATED
    broken = bytearray(stream)
    broken[-10] ^= 1
    decoded = read(bytes(broken))
    assert text_of(decoded) == "Hel"
    assert failure_of(read(bytes(broken))).kind is Kind.CORRUPT


@pytest.mark.parametrize("payload", [b"{", b'{"content":5}', b"\xff", b"[]", b'{"assistantResponseEvent":' * 5000])
def test_text_that_cannot_be_read_is_a_failure(payload: bytes) -> None:
    assert failure_of(read(text_event("Hel") + event("assistantResponseEvent", payload) + TAIL)).kind is Kind.CORRUPT


def test_nothing_follows_a_failure() -> None:
    reader = Reader()
    reader.feed(exception("ThrottlingException", {"message": "slow"}))
    assert [*reader.feed(text_event("Hi")), *reader.finish()] == []


@pytest.mark.parametrize("count", [-1, 10**40, 1.5])
def test_a_count_that_cannot_be_true_is_clamped_and_keeps_the_rest_of_its_event(count: float) -> None:
    usage = {"uncachedInputTokens": count, "outputTokens": count}
    decoded = read(
        text_event("Hi") + event("metadataEvent", {"tokenUsage": usage, "stopReason": "MAX_TOKENS"}) + metering(1e300)
    )
    used, end = decoded[-2:]
    assert isinstance(used, UsageReported)
    assert 0 <= used.usage.input <= MAX_COUNT
    assert 0 <= used.usage.output <= MAX_COUNT
    assert used.usage.credits == MAX_CREDITS
    assert end == Ended(Stop.LENGTH)


@pytest.mark.parametrize("percentage", [-5.0, 1e308])
def test_a_share_of_the_context_that_cannot_be_true_raises_nothing(percentage: float) -> None:
    *_, used, _ = read(text_event("Hi") + context(percentage))
    assert isinstance(used, UsageReported)
    assert 0 <= (used.usage.context or 0) <= MAX_COUNT


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


UNFRAMED = b"\n".join(
    (
        b'{"utteranceId":"u-1","conversationId":"c-1"}',
        b'{"text":"ab"}',
        b'{"signature":"S"}',
        '{"content":"é日😀"}'.encode(),
        b'{"content":"haha","modelId":"m"}',
        b'{"followupPrompt":{"content":"no"}}',
        b'{"name":"f","toolUseId":"A"}',
        b'{"name":"f","toolUseId":"A","input":"{\\"a\\":"}',
        b'{"input":"1}"}',
        b'{"stop":true}',
        b'{"toolUseEvent":{"name":"g","toolUseId":"B","input":"{\\"b\\":[]}","stop":true}}',
        b'{"content":"done"}',
        b'{"tokenUsage":{"uncachedInputTokens":10,"cacheReadInputTokens":2,"cacheWriteInputTokens":1,"outputTokens":5}}',
        b'{"contextUsagePercentage":2.05}',
        b'{"unit":"credit","usage":0.0148}',
    )
)


def test_a_body_of_bare_json_is_the_same_reply_as_its_frames() -> None:
    assert join_deltas(read(UNFRAMED)) == join_deltas(read(RICH))
    assert join_deltas(decode_whole(UNFRAMED, ISSUER, Ledger())) == join_deltas(read(RICH))
    assert join_deltas(read(b"data: " + UNFRAMED.replace(b"\n", b"\n\ndata: "))) == join_deltas(read(RICH))


def test_an_error_body_under_a_good_status_is_a_failure() -> None:
    body = b'{"__type":"com.amazon#ThrottlingException","message":"slow"}'
    assert failure_of(decode_whole(body, ISSUER, Ledger())).kind is Kind.RATE_LIMITED


def test_a_page_that_is_no_reply_is_a_failure() -> None:
    for body in (b"<html>no</html> and more", b"{}", b"x", b'{"odd":1}', b'{"content":"a'):
        assert isinstance(decode_whole(body, ISSUER, Ledger())[-1], Failed)


def test_a_text_cut_inside_an_object_is_truncation() -> None:
    assert failure_of(read(UNFRAMED[:-1])).kind is Kind.TRUNCATED


def test_any_cut_of_the_bytes_gives_the_same_events() -> None:
    assert_any_cut_agrees(Reader, RICH, join_deltas)
    assert_any_cut_agrees(Reader, UNFRAMED, join_deltas)


def test_the_whole_body_and_the_stream_agree() -> None:
    assert decode_whole(RICH, ISSUER, Ledger()) == read(RICH)


def test_reading_costs_linear_time() -> None:
    assert_linear(Reader, text_event("Hi"), 1_000)
    assert_linear(Reader, uses("A", "f", input="x"), 1_000)
    for repeated in ('{"a":', '{"a":1}', "{}"):
        assert_linear(Reader, uses("A", "f", input=repeated), 1_000)
        assert_linear(Reader, uses("A", "f", input=repeated, stop=True), 1_000)
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

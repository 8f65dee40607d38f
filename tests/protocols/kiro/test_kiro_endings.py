"""How a Kiro reply ends: well, by its length, by an exception, or in the middle of a frame."""

import pytest

from dragoman.hub.events import Ended, Failed, Stop, UsageReported
from dragoman.hub.failure import Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Issuer
from dragoman.hub.usage import MAX_COUNT, MAX_CREDITS
from fakes.eventstream import error, event, exception
from protocols.kiro.kiro_replies import (
    ISSUER,
    LENIENT,
    TAIL,
    Reader,
    context,
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


def failure_kind(stream: bytes) -> Kind:
    last = read(stream)[-1]
    assert isinstance(last, Failed)
    return last.failure.kind


# The end


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("END_TURN", Stop.END),
        ("TOOL_USE", Stop.END),
        ("MAX_TOKENS", Stop.LENGTH),
        ("STOP_SEQUENCE", Stop.STOP_SEQUENCE),
        ("CONTENT_FILTERED", Stop.FILTERED),
        ("MODEL_CONTEXT_WINDOW_EXCEEDED", Stop.CONTEXT_FULL),
        ("PAUSE_TURN", Stop.PAUSE),
        ("SOMETHING_NEW", Stop.END),
    ],
)
def test_the_stop_reason_is_passed_on(reason: str, stop: Stop) -> None:
    assert read_ending(text_event("Hi") + metadata(reason)).stop is stop


def test_an_unknown_stop_reason_is_in_the_ledger() -> None:
    ledger = Ledger()
    read(text_event("Hi") + metadata("SOMETHING_NEW"), ledger=ledger)
    assert [loss.path for loss in ledger] == ["/stopReason"]


def test_a_full_context_is_reported_unless_there_are_calls() -> None:
    assert read_ending(text_event("Hi") + metadata() + context(100)).stop is Stop.CONTEXT_FULL
    assert read_ending(text_event("Hi") + metadata("CONTENT_FILTERED") + context(100)).stop is Stop.FILTERED
    assert read_ending(uses("A", "f", stop=True) + context(100)).stop is Stop.TOOL
    assert read_ending(text_event("Hi") + metadata() + context(99.9)).stop is Stop.END


@pytest.mark.parametrize("tail", [metadata(), context(1), metering(1)])
def test_any_tail_event_makes_the_reply_whole(tail: bytes) -> None:
    assert read_ending(text_event("Hi") + tail).stop is Stop.END


def test_a_missing_tail_is_truncation_unless_switched_off() -> None:
    assert read_ending(text_event("Hi")).stop is Stop.LENGTH
    assert read_ending(make_reasoning(text="Hm")).stop is Stop.LENGTH
    assert read_ending(text_event("Hi"), LENIENT).stop is Stop.END


def test_whole_calls_win_over_a_missing_tail() -> None:
    assert read_ending(uses("A", "f", input="{}", stop=True)) == Ended(Stop.TOOL)


def test_an_empty_stream_is_a_failure_that_may_be_tried_again() -> None:
    for nothing in (
        b"",
        event("initial-response", {}),
        text_event(""),
        event("messageMetadataEvent", {"utteranceId": "u"}),
    ):
        (failed,) = read(nothing)
        assert isinstance(failed, Failed)
        assert failed.failure.kind is Kind.TRUNCATED


def test_a_reply_of_tail_events_only_has_no_content_and_ends_well() -> None:
    got = reply(TAIL)
    assert got.pieces == ()
    assert got.end == Ended(Stop.END)


# Failures


def test_an_exception_first_is_a_failure_and_nothing_else() -> None:
    (failed,) = read(exception("ThrottlingException", {"message": "slow"}) + text_event("no"))
    assert isinstance(failed, Failed)
    assert (failed.failure.kind, failed.failure.message) == (Kind.RATE_LIMITED, "slow")


def test_an_exception_after_text_ends_the_reply_without_a_normal_end() -> None:
    decoded = read(
        text_event("Hel") + exception("InternalServerException", {"message": "oops"}) + text_event("lo") + TAIL
    )
    assert text_of(decoded) == "Hel"
    assert [type(event) for event in decoded[-1:]] == [Failed]
    assert not any(isinstance(event, Ended) for event in decoded)


@pytest.mark.parametrize(
    ("frame", "kind", "code"),
    [
        (
            exception("ValidationException", {"message": "x", "reason": "CONTENT_LENGTH_EXCEEDS_THRESHOLD"}),
            Kind.CONTEXT_TOO_LONG,
            "CONTENT_LENGTH_EXCEEDS_THRESHOLD",
        ),
        (exception("ThrottlingException", b""), Kind.RATE_LIMITED, "ThrottlingException"),
        (error("InternalServerException", "went wrong"), Kind.UPSTREAM, "InternalServerException"),
        (error("ServiceUnavailableException", "busy"), Kind.OVERLOADED, "ServiceUnavailableException"),
        (event("error", {"message": "oops"}), Kind.UPSTREAM, "InternalServerException"),
        (
            event("invalidStateEvent", {"reason": "INVALID_TASK_ASSIST_PLAN", "message": "no plan"}),
            Kind.UPSTREAM,
            "INVALID_TASK_ASSIST_PLAN",
        ),
        (
            event("invalidStateEvent", {"invalidStateEvent": {"reason": "INVALID_TASK_ASSIST_PLAN"}}),
            Kind.UPSTREAM,
            "INVALID_TASK_ASSIST_PLAN",
        ),
    ],
)
def test_exceptions_errors_and_invalid_states_are_failures(frame: bytes, kind: Kind, code: str) -> None:
    (failed,) = read(frame)
    assert isinstance(failed, Failed)
    assert (failed.failure.kind, failed.failure.code) == (kind, code)


def test_an_end_inside_a_frame_is_truncation_and_a_broken_frame_corruption() -> None:
    stream = text_event("Hel", "lo")
    assert failure_kind(stream[:-1]) is Kind.TRUNCATED
    broken = bytearray(stream)
    broken[-10] ^= 1
    decoded = read(bytes(broken))
    assert text_of(decoded) == "Hel"
    assert failure_kind(bytes(broken)) is Kind.CORRUPT


@pytest.mark.parametrize("payload", [b"{", b'{"content":5}', b"\xff", b"[]", b'{"assistantResponseEvent":' * 5000])
def test_text_that_cannot_be_read_is_a_failure(payload: bytes) -> None:
    assert failure_kind(text_event("Hel") + event("assistantResponseEvent", payload) + TAIL) is Kind.CORRUPT


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

"""How a Responses stream ends: every stop, every failure, whole bodies and repairs."""

import msgspec
import pytest

from dragoman.translate.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    Opened,
    RefusalBlock,
    Started,
    Stop,
)
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.ports import EVENT_STREAM
from tables import each_row
from translate.protocols.responses.responses_kit import (
    CLIENT,
    HELLO,
    STARTED,
    encode_events,
    losses,
    make_context,
    payloads,
    terminal,
    types,
)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [(Stop.LENGTH, "max_output_tokens"), (Stop.CONTEXT_FULL, "max_output_tokens"), (Stop.FILTERED, "content_filter")],
)
def test_a_reply_that_was_cut_is_incomplete_and_so_is_its_last_item(stop: Stop, reason: str) -> None:
    call: list[Event] = [Opened(1, CallBlock("c", "f")), Delta(1, '{"a'), Closed(1)]
    stream = encode_events([*HELLO[:-1], *call, Ended(stop)])
    response = terminal(stream)
    assert types(stream)[-1] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    done = [payload["item"] for payload in payloads(stream) if payload["type"] == "response.output_item.done"]
    assert done == response["output"]


@each_row("stop", Stop)
def test_every_other_end_is_completed_and_only_such_a_response_has_the_time(stop: Stop) -> None:
    events = [*HELLO[:-1], Ended(stop, sequence="###")]
    completed = stop not in (Stop.LENGTH, Stop.CONTEXT_FULL, Stop.FILTERED)
    for response in (
        terminal(encode_events(events)),
        msgspec.json.decode(CLIENT.encode_whole(events, make_context(), Ledger())),
    ):
        assert (response["status"] == "completed") is completed
        assert response["completed_at"] == (1794700002 if completed else None)


def test_a_response_under_way_or_failed_was_never_completed() -> None:
    begun, *_, failed = payloads(encode_events([*HELLO[:-1], Failed(Failure(Kind.LOST, "gone"))]))
    assert begun["response"]["completed_at"] is failed["response"]["completed_at"] is None


def test_the_clock_is_read_when_the_reply_ends() -> None:
    times = iter((1794700007.5,))
    machine = CLIENT.encoder(make_context(now=lambda: next(times)), Ledger())
    frames = [frame for event in HELLO for frame in machine.feed(event)]
    assert terminal(b"".join(frames))["completed_at"] == 1794700007


def test_a_clock_that_was_set_back_completes_nothing_before_it_began() -> None:
    response = terminal(encode_events(HELLO, make_context(now=lambda: 1794600000.0)))
    assert response["completed_at"] == response["created_at"] == 1794700000


def test_a_pause_is_recorded_as_a_loss() -> None:
    ledger = Ledger()
    encode_events([*HELLO[:-1], Ended(Stop.PAUSE)], ledger=ledger)
    assert losses(ledger) == [("/stop_reason", LossKind.APPROXIMATED)]


def test_a_refusal_of_which_only_the_reason_is_sent_becomes_a_refusal_text() -> None:
    ledger = Ledger()
    stream = encode_events([STARTED, Ended(Stop.FILTERED, category="cyber", explanation="Not this.")], ledger=ledger)
    response = terminal(stream)
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "Not this."}]
    assert losses(ledger) == [("/stop_details/category", LossKind.DROPPED)]


def test_a_refusal_streams_as_refusal() -> None:
    stream = encode_events([STARTED, Opened(0, RefusalBlock()), Delta(0, "No."), Closed(0), Ended(Stop.END)])
    assert types(stream)[4:6] == ["response.refusal.delta", "response.refusal.done"]


def test_a_failure_is_an_error_event_and_then_a_failed_response() -> None:
    failure = Failure(Kind.RATE_LIMITED, "Too many requests.", retry_after=12.0)
    stream = encode_events([*HELLO[:3], Failed(failure)])
    error, failed = payloads(stream)[-2:]
    assert error["error"] == {
        "type": "rate_limit_error",
        "code": "rate_limit_exceeded",
        "message": "Too many requests. Please try again in 12s.",
        "param": None,
    }
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {
        "code": "rate_limit_exceeded",
        "message": "Too many requests. Please try again in 12s.",
    }
    assert "response.output_item.done" not in types(stream)
    assert stream.endswith(b"data: [DONE]\n\n")


def test_items_finished_before_a_failure_are_announced_and_kept() -> None:
    stream = encode_events([*HELLO[:-1], Failed(Failure(Kind.LOST, "gone"))])
    assert types(stream)[-3:] == ["response.output_item.done", "error", "response.failed"]
    assert len(terminal(stream)["output"]) == 1


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Kind.CONTEXT_TOO_LONG, "context_length_exceeded"),
        (Kind.QUOTA, "insufficient_quota"),
        (Kind.RATE_LIMITED, "rate_limit_exceeded"),
        (Kind.LIMITED, "rate_limit_exceeded"),
        (Kind.SPENT, "insufficient_quota"),
        (Kind.OVERLOADED, "server_error"),
        (Kind.TRUNCATED, "server_error"),
        (Kind.BUG, "server_error"),
        (Kind.CREDENTIAL, "server_error"),
    ],
)
def test_a_failed_response_has_the_code_that_codex_reads(kind: Kind, code: str) -> None:
    stream = encode_events([STARTED, Failed(Failure(kind, "x", code="overloaded_error_of_another_vendor"))])
    assert terminal(stream)["error"]["code"] == code


def test_a_failure_before_the_start_is_still_a_legal_stream() -> None:
    assert types(encode_events([Failed(Failure(Kind.LOST, "gone"))])) == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]


def test_empty_deltas_are_not_sent() -> None:
    assert encode_events([*HELLO[:3], Delta(0, ""), *HELLO[3:]]) == encode_events(HELLO)


def test_a_whole_body_of_a_failed_reply_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        CLIENT.encode_whole([STARTED, Failed(Failure(Kind.OVERLOADED, "busy"))], make_context(), Ledger())
    assert refused.value.failure.kind is Kind.OVERLOADED


def test_a_broken_passthrough_is_repaired_with_its_own_id_and_the_next_numbers() -> None:
    stream = CLIENT.render_stream_error(Failure(Kind.TRUNCATED, "cut"), Started("resp_9", "gpt-x"), 7, EVENT_STREAM)
    error, failed = payloads(stream)
    assert (error["type"], error["sequence_number"]) == ("error", 7)
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 8)
    assert (failed["response"]["id"], failed["response"]["status"]) == ("resp_9", "failed")


def test_keep_alives_are_comments() -> None:
    assert CLIENT.keep_alive.startswith(b":")
    assert CLIENT.keep_alive.endswith(b"\n\n")

"""Error bodies of Messages, read and written."""

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.translate.hub.events import Started
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import EVENT_STREAM
from tables import each_row
from translate.protocols.messages.messages_dialogue import CLIENT, UPSTREAM, frames
from wire_json import JsonObject


def body_of(kind: str, message: str, **more: object) -> bytes:
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message, **more}})


def read(status: int, body: bytes, **headers: str) -> Failure:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return UPSTREAM.read_error(status, named, body)


def render(failure: Failure) -> tuple[int, JsonObject]:
    out = CLIENT.render_error(failure, "req_7")
    return out.status, msgspec.json.decode(out.body, type=JsonObject)


@each_row(
    ("status", "body", "kind"),
    [
        (400, body_of("invalid_request_error", "max_tokens: required"), Kind.BAD_REQUEST),
        (400, body_of("invalid_request_error", "prompt is too long: 250000 tokens"), Kind.CONTEXT_TOO_LONG),
        (
            400,
            body_of("invalid_request_error", "input length and `max_tokens` exceed context limit"),
            Kind.CONTEXT_TOO_LONG,
        ),
        (400, body_of("invalid_request_error", "Your credit balance is too low"), Kind.QUOTA),
        (401, body_of("authentication_error", "invalid x-api-key"), Kind.CREDENTIAL),
        (402, body_of("billing_error", "pay"), Kind.QUOTA),
        (403, body_of("permission_error", "not entitled to this model"), Kind.FORBIDDEN),
        (403, body_of("permission_error", "OAuth token has expired"), Kind.CREDENTIAL),
        (404, body_of("not_found_error", "model: x"), Kind.NOT_FOUND),
        (409, body_of("conflict_error", "twice"), Kind.CONFLICT),
        (413, body_of("request_too_large", "big"), Kind.TOO_LARGE),
        (422, b'{"detail":"no such field"}', Kind.BAD_REQUEST),
        (429, body_of("rate_limit_error", "slow"), Kind.RATE_LIMITED),
        (500, body_of("api_error", "oops"), Kind.UPSTREAM),
        (404, body_of("api_error", "no such model"), Kind.NOT_FOUND),
        (422, body_of("api_error", "no such field"), Kind.BAD_REQUEST),
        (503, body_of("api_error", "starting"), Kind.OVERLOADED),
        (503, b"", Kind.OVERLOADED),
        (504, body_of("timeout_error", "late"), Kind.TIMEOUT),
        (529, body_of("overloaded_error", "busy"), Kind.OVERLOADED),
        (502, b"<html><head><style>b{}</style></head><body><h1>Bad gateway</h1></body></html>", Kind.UPSTREAM),
    ],
)
def test_an_error_answer_is_read_by_its_type_then_by_its_status(status: int, body: bytes, kind: Kind) -> None:
    assert read(status, body).kind is kind


PAGE = b"<html><head><style>b{color:red}</style></head><body><h1>Bad  gateway</h1></body></html>"
SECRET = "sk-fake-0123456789abcdef"


@each_row(
    ("status", "body", "message"),
    [
        (502, PAGE, "the upstream returned HTTP 502: Bad gateway"),
        (503, b"", "the upstream returned HTTP 503 without a message"),
        (
            401,
            body_of("authentication_error", f"bad key {SECRET} in Bearer {SECRET}"),
            "bad key [hidden] in Bearer [hidden]",
        ),
    ],
)
def test_an_error_is_described_in_words_without_secrets(status: int, body: bytes, message: str) -> None:
    assert read(status, body).message == message


def test_a_long_message_is_shortened() -> None:
    assert len(read(500, body_of("api_error", "x" * 5000)).message) == 300


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "20"}, 20.0),
        ({"retry_after_ms": "1500", "retry_after": "2"}, 1.5),
        ({"retry_after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry_after": "-1"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert read(429, body_of("rate_limit_error", "slow"), **headers).retry_after == seconds


def test_details_survive_both_ways() -> None:
    failure = read(400, body_of("invalid_request_error", "no", details={"error_code": "odd"}))
    assert render(failure)[1]["error"] == {
        "type": "invalid_request_error",
        "message": "no",
        "details": {"error_code": "odd"},
    }


@each_row(
    ("kind", "status", "name"),
    [
        (Kind.BAD_REQUEST, 400, "invalid_request_error"),
        (Kind.TOO_LARGE, 413, "request_too_large"),
        (Kind.REQUEST_TIMEOUT, 408, "timeout_error"),
        (Kind.AUTH, 401, "authentication_error"),
        (Kind.CREDENTIAL, 502, "api_error"),
        (Kind.FORBIDDEN, 403, "permission_error"),
        (Kind.NOT_FOUND, 404, "not_found_error"),
        (Kind.CONFLICT, 409, "conflict_error"),
        (Kind.QUOTA, 402, "billing_error"),
        (Kind.RATE_LIMITED, 429, "rate_limit_error"),
        (Kind.LIMITED, 429, "rate_limit_error"),
        (Kind.SPENT, 402, "billing_error"),
        (Kind.OVERLOADED, 529, "overloaded_error"),
        (Kind.BUSY, 529, "overloaded_error"),
        (Kind.REFUSED, 400, "invalid_request_error"),
        (Kind.TIMEOUT, 504, "timeout_error"),
        (Kind.TRUNCATED, 502, "api_error"),
        (Kind.CORRUPT, 502, "api_error"),
        (Kind.LOST, 502, "api_error"),
        (Kind.UPSTREAM, 502, "api_error"),
        (Kind.SHUTDOWN, 503, "api_error"),
        (Kind.BUG, 500, "api_error"),
    ],
)
def test_every_failure_has_its_status_and_type(kind: Kind, status: int, name: str) -> None:
    answer = {"type": "error", "error": {"type": name, "message": "why"}, "request_id": "req_7"}
    assert render(Failure(kind, "why")) == (status, answer)


SPENT = Failure(Kind.QUOTA, "The usage limit has been reached", status=429, retry_after=600.0)


@each_row(
    ("failure", "status", "message"),
    [
        (SPENT, 429, SPENT.message),  # with a reset it keeps its status
        (replace(SPENT, status=402), 402, SPENT.message),
        (replace(SPENT, retry_after=None), 402, SPENT.message),
        (Failure(Kind.UPSTREAM, "why", status=500), 500, "why"),
        (Failure(Kind.CONTEXT_TOO_LONG, "9 tokens"), 400, "prompt is too long: 9 tokens"),  # clients look for this
        *(
            (Failure(Kind.CONTEXT_TOO_LONG, words), 400, "prompt is too long: 9000 tokens > 8192 maximum")
            for words in (
                "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
                "This model's maximum context length is 8,192 tokens. However, you requested 9,000 tokens (8,500 in "
                "the messages, 500 in the completion).",
                "The input token count (9000) exceeds the maximum number of tokens allowed (8192).",
                "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
            )
        ),
        (
            Failure(Kind.CONTEXT_TOO_LONG, "model-99000 allows a context length of 8192 tokens"),
            400,
            "prompt is too long: model-99000 allows a context length of 8192 tokens",
        ),
        (Failure(Kind.BAD_REQUEST, "must be 1", at="/messages/0/n"), 400, "messages.0.n: must be 1"),
    ],
)
def test_a_failure_has_the_status_and_words_that_clients_look_for(failure: Failure, status: int, message: str) -> None:
    rendered, body = render(failure)
    assert (rendered, body["error"]["message"]) == (status, message)


def test_a_stream_without_its_end_is_given_an_error_event() -> None:
    added = CLIENT.render_stream_error(Failure(Kind.TRUNCATED, "cut"), Started("msg_1", "m"), 12, EVENT_STREAM)
    assert frames(added) == [{"type": "error", "error": {"type": "api_error", "message": "cut"}}]

"""Google's error bodies, read into failures."""

import msgspec
import pytest

from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.protocols.gemini.errors import read_failure
from tables import each_row
from wire_json import JsonObject

TYPE = "type.googleapis.com/google.rpc."


def read(status: int, error: JsonObject, headers: dict[bytes, bytes] | None = None) -> Failure:
    return read_failure(status, headers or {}, msgspec.json.encode({"error": {"code": status, **error}}))


def detail(kind: str, **fields: object) -> JsonObject:
    return {"@type": TYPE + kind, **fields}


@each_row(
    ("status", "word", "kind"),
    [
        (400, "INVALID_ARGUMENT", Kind.BAD_REQUEST),
        (400, "FAILED_PRECONDITION", Kind.BAD_REQUEST),
        (401, "UNAUTHENTICATED", Kind.CREDENTIAL),
        (403, "PERMISSION_DENIED", Kind.FORBIDDEN),
        (404, "NOT_FOUND", Kind.NOT_FOUND),
        (409, "ABORTED", Kind.CONFLICT),
        (429, "RESOURCE_EXHAUSTED", Kind.RATE_LIMITED),
        (499, "CANCELLED", Kind.UPSTREAM),
        (500, "INTERNAL", Kind.UPSTREAM),
        (503, "UNAVAILABLE", Kind.OVERLOADED),
        (504, "DEADLINE_EXCEEDED", Kind.TIMEOUT),
        (422, "UNKNOWN", Kind.BAD_REQUEST),
        (503, "UNKNOWN", Kind.OVERLOADED),
    ],
)
def test_every_status_has_its_kind(status: int, word: str, kind: Kind) -> None:
    failure = read(status, {"message": "No.", "status": word})
    assert (failure.kind, failure.message, failure.status, failure.code) == (kind, "No.", status, word)


def test_a_bad_key_is_a_400_of_our_credential() -> None:
    error = {"message": "API key not valid.", "status": "INVALID_ARGUMENT"}
    info = detail("ErrorInfo", reason="API_KEY_INVALID", domain="googleapis.com")
    assert read(400, error | {"details": [info]}).kind is Kind.CREDENTIAL


def test_too_many_tokens_are_a_context_that_is_too_long() -> None:
    message = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
    assert read(400, {"message": message, "status": "INVALID_ARGUMENT"}).kind is Kind.CONTEXT_TOO_LONG


def test_a_daily_limit_is_a_quota_and_another_one_a_rate() -> None:
    error = {"message": "Quota exceeded.", "status": "RESOURCE_EXHAUSTED"}
    daily = detail("QuotaFailure", violations=[{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}])
    minute = detail("QuotaFailure", violations=[{"quotaId": "GenerateRequestsPerMinutePerProject"}])
    assert read(429, error | {"details": [daily]}).kind is Kind.QUOTA
    assert read(429, error | {"details": [minute]}).kind is Kind.RATE_LIMITED
    assert read(429, error | {"message": "Quota exceeded, limit: 0"}).kind is Kind.QUOTA


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        ({"message": "No.", "details": [detail("RetryInfo", retryDelay="7s")]}, 7.0),
        ({"message": "No.", "details": [detail("RetryInfo", retryDelay="0.5s")]}, 0.5),
        ({"message": "Please retry in 12.5s."}, 12.5),
        ({"message": "Please retry in 900ms."}, 0.9),
        ({"message": "No."}, None),
    ],
)
def test_the_wait_is_in_the_details_or_in_the_message(error: JsonObject, wait: float | None) -> None:
    assert read(429, error | {"status": "RESOURCE_EXHAUSTED"}).retry_after == wait


def test_an_error_of_a_stream_stands_in_a_list() -> None:
    body = msgspec.json.encode([{"error": {"code": 503, "message": "Busy.", "status": "UNAVAILABLE"}}])
    assert read_failure(503, {}, body).kind is Kind.OVERLOADED


@pytest.mark.parametrize("body", [b"", b"<html>Bad gateway</html>", b"[]", b'{"error":"x"}', b"\xff", b"[" * 9000])
def test_what_is_no_error_body_is_read_by_its_status(body: bytes) -> None:
    assert read_failure(429, {b"retry-after": b"3"}, body).kind is Kind.RATE_LIMITED

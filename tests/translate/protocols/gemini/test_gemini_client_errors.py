"""Failures as google.rpc.Status."""

import msgspec

from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import EVENT_STREAM
from dragoman.translate.protocols.gemini.errors import render_error, render_stream_error, repeat_stream_error
from dragoman.translate.protocols.gemini.wire import ARRAY_STREAM
from tables import each_row
from wire_json import JsonObject


def render(failure: Failure) -> JsonObject:
    response = render_error(failure, "req_1")
    error: JsonObject = msgspec.json.decode(response.body)["error"]
    assert error["code"] == response.status
    return error


@each_row(
    ("kind", "code", "status"),
    [
        (Kind.BAD_REQUEST, 400, "INVALID_ARGUMENT"),
        (Kind.AUTH, 401, "UNAUTHENTICATED"),
        (Kind.FORBIDDEN, 403, "PERMISSION_DENIED"),
        (Kind.NOT_FOUND, 404, "NOT_FOUND"),
        (Kind.CONFLICT, 409, "ABORTED"),
        (Kind.TOO_LARGE, 413, "INVALID_ARGUMENT"),
        (Kind.QUOTA, 429, "RESOURCE_EXHAUSTED"),
        (Kind.RATE_LIMITED, 429, "RESOURCE_EXHAUSTED"),
        (Kind.LIMITED, 429, "RESOURCE_EXHAUSTED"),
        (Kind.SPENT, 429, "RESOURCE_EXHAUSTED"),
        (Kind.BUG, 500, "INTERNAL"),
        (Kind.CREDENTIAL, 502, "INTERNAL"),
        (Kind.OVERLOADED, 503, "UNAVAILABLE"),
        (Kind.TIMEOUT, 504, "DEADLINE_EXCEEDED"),
    ],
)
def test_each_kind_has_a_code_and_a_status(kind: Kind, code: int, status: str) -> None:
    error = render(Failure(kind, "x"))
    assert (error["code"], error["status"], error["message"]) == (code, status, "x")


def test_a_known_wait_is_retry_info() -> None:
    details = render(Failure(Kind.RATE_LIMITED, "slow down", retry_after=6.1))["details"]
    assert details == [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}]


def test_a_spent_allowance_names_the_day_so_that_clients_stop_retrying() -> None:
    for kind in (Kind.QUOTA, Kind.SPENT):
        (detail,) = render(Failure(kind, "spent"))["details"]
        assert "PerDay" in detail["violations"][0]["quotaId"]


def test_the_field_at_fault_and_the_code_are_details() -> None:
    info, fields = render(Failure(Kind.BAD_REQUEST, "wrong", code="bad_thing", at="/contents/0/role"))["details"]
    assert info["reason"] == "BAD_THING"
    assert fields["fieldViolations"] == [{"field": "contents[0].role", "description": "wrong"}]


def test_a_context_that_is_too_long_has_googles_message() -> None:
    assert "exceeds the maximum number of tokens" in render(Failure(Kind.CONTEXT_TOO_LONG, "200k"))["message"]


def test_what_ends_a_broken_stream() -> None:
    failure = Failure(Kind.TRUNCATED, "cut\u2028off")
    body = render_error(failure, "").body
    assert body.startswith(b'{"error":')
    assert b"\\u2028" in body
    assert render_stream_error(failure, None, 3, EVENT_STREAM) == b"data: " + body + b"\n\n"
    assert repeat_stream_error(failure, EVENT_STREAM) == body
    assert render_stream_error(failure, None, 3, ARRAY_STREAM) == b"," + body + b"]"
    assert render_stream_error(failure, None, 0, ARRAY_STREAM) == b"[" + body + b"]"
    assert repeat_stream_error(failure, ARRAY_STREAM) == b""

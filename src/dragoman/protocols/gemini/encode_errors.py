"""Render failures as Google's errors (google.rpc.Status), in responses and in streams."""

import math

import msgspec

from dragoman.framing.error_text import format_parameter
from dragoman.hub.events import Started
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.ports import EVENT_STREAM, ErrorResponse
from dragoman.protocols.gemini.wire import Wire, encode_json

_TYPES = "type.googleapis.com/"
_DOMAIN = "dragoman"
_TOO_LONG = "The input exceeds the maximum number of tokens"
_RENDERED: dict[Kind, tuple[int, str]] = {
    Kind.BAD_REQUEST: (400, "INVALID_ARGUMENT"),
    Kind.TOO_LARGE: (413, "INVALID_ARGUMENT"),
    Kind.REQUEST_TIMEOUT: (408, "DEADLINE_EXCEEDED"),
    Kind.AUTH: (401, "UNAUTHENTICATED"),
    Kind.CREDENTIAL: (502, "INTERNAL"),  # a 401 would make the client suspect its own key
    Kind.FORBIDDEN: (403, "PERMISSION_DENIED"),
    Kind.NOT_FOUND: (404, "NOT_FOUND"),
    Kind.CONFLICT: (409, "ABORTED"),
    Kind.QUOTA: (429, "RESOURCE_EXHAUSTED"),
    Kind.RATE_LIMITED: (429, "RESOURCE_EXHAUSTED"),
    Kind.OVERLOADED: (503, "UNAVAILABLE"),
    Kind.BUSY: (503, "UNAVAILABLE"),
    Kind.CONTEXT_TOO_LONG: (400, "INVALID_ARGUMENT"),
    Kind.REFUSED: (400, "FAILED_PRECONDITION"),
    Kind.TIMEOUT: (504, "DEADLINE_EXCEEDED"),
    Kind.TRUNCATED: (502, "UNAVAILABLE"),
    Kind.CORRUPT: (502, "INTERNAL"),
    Kind.LOST: (502, "UNAVAILABLE"),
    Kind.UPSTREAM: (502, "INTERNAL"),
    Kind.BUG: (500, "INTERNAL"),
    Kind.SHUTDOWN: (503, "UNAVAILABLE"),
}


class _Status(msgspec.Struct):
    code: int
    message: str
    status: str


class ErrorShape(msgspec.Struct):
    error: _Status


def render_error(failure: Failure, request_id: str) -> ErrorResponse:
    """Return the error response; SDKs choose the exception by its HTTP status."""
    return ErrorResponse(_choose_status(failure), encode_error(failure))


def encode_error(failure: Failure) -> bytes:
    """Return the body of an error. `error` must be the first key, and its code a number: SDKs look for that."""
    error: Wire = {
        "code": _choose_status(failure),
        "message": _build_message(failure),
        "status": _RENDERED[failure.kind][1],
    }
    details = _build_details(failure)
    return encode_json({"error": {**error, "details": details} if details else error})


def render_stream_error(failure: Failure, started: Started | None, frames: int, stream_type: bytes) -> bytes:
    """Return what to append to a passthrough stream that ended without a finishReason."""
    if stream_type == EVENT_STREAM:
        return b"data: " + encode_error(failure) + b"\n\n"
    return (b"," if frames else b"[") + encode_error(failure) + b"]"


def repeat_stream_error(failure: Failure, stream_type: bytes) -> bytes:
    """Return what follows the error event in a write of its own.

    Python reads the event. Older JS clients, Gemini CLI's among them, and Go's notice only a body without `data:`.
    """
    return encode_error(failure) if stream_type == EVENT_STREAM else b""


def _choose_status(failure: Failure) -> int:
    if failure.kind is Kind.UPSTREAM and failure.status == 500:
        return 500
    return _RENDERED[failure.kind][0]


def _build_message(failure: Failure) -> str:
    if failure.kind is Kind.CONTEXT_TOO_LONG and "maximum number of tokens" not in failure.message:
        return f"{_TOO_LONG}: {failure.message}"
    return failure.message


def _build_details(failure: Failure) -> list[Wire]:
    details: list[Wire] = []
    if failure.code is not None:
        info = {"reason": failure.code.upper(), "domain": _DOMAIN, "metadata": {}}
        details.append({"@type": f"{_TYPES}google.rpc.ErrorInfo", **info})
    if failure.at:
        violation = {"field": format_parameter(failure.at), "description": failure.message}
        details.append({"@type": f"{_TYPES}google.rpc.BadRequest", "fieldViolations": [violation]})
    if failure.kind is Kind.QUOTA and failure.retry_after is None:  # Gemini CLI stops asking where a day is named
        violation = {"quotaId": "UpstreamQuotaPerDay", "description": failure.message}
        details.append({"@type": f"{_TYPES}google.rpc.QuotaFailure", "violations": [violation]})
    if failure.retry_after is not None:
        wait = {"retryDelay": f"{math.ceil(failure.retry_after)}s"}
        details.append({"@type": f"{_TYPES}google.rpc.RetryInfo", **wait})
    if failure.detail is not None:
        details.append({"@type": f"{_TYPES}google.protobuf.Struct", "value": failure.detail})
    return details

"""Read Google's errors (google.rpc.Status) into failures, and render failures as such errors."""

import math
import re
from collections.abc import Mapping

import msgspec

from dragoman.translate.framing.error_text import (
    READ,
    clean_message,
    describe_error_page,
    find_error_object,
    format_parameter,
    kind_for_status,
    plausible_seconds,
    retry_after,
    strip_html,
)
from dragoman.translate.hub.events import Started
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import EVENT_STREAM, ErrorResponse
from dragoman.translate.protocols.gemini.wire import Wire, encode_json

UNEXPLAINED = "the upstream reported an error without a message"

# What Google writes as error.status; the HTTP status decides where it is not listed.
_KIND_BY_STATUS: dict[str, Kind] = {
    "INVALID_ARGUMENT": Kind.BAD_REQUEST,
    "FAILED_PRECONDITION": Kind.BAD_REQUEST,
    "OUT_OF_RANGE": Kind.BAD_REQUEST,
    "UNAUTHENTICATED": Kind.CREDENTIAL,
    "PERMISSION_DENIED": Kind.FORBIDDEN,
    "NOT_FOUND": Kind.NOT_FOUND,
    "ALREADY_EXISTS": Kind.CONFLICT,
    "ABORTED": Kind.CONFLICT,
    "RESOURCE_EXHAUSTED": Kind.RATE_LIMITED,
    "UNAVAILABLE": Kind.OVERLOADED,
    "DEADLINE_EXCEEDED": Kind.TIMEOUT,
    "INTERNAL": Kind.UPSTREAM,
    "DATA_LOSS": Kind.UPSTREAM,
    "CANCELLED": Kind.UPSTREAM,
    "UNIMPLEMENTED": Kind.UPSTREAM,
}
_BAD_KEY_REASONS = frozenset(("API_KEY_INVALID", "API_KEY_EXPIRED", "API_KEY_SERVICE_BLOCKED", "ACCESS_TOKEN_EXPIRED"))
_TOO_LONG = re.compile(
    r"exceeds the maximum number of (?:input )?tokens|input token count.{0,200}exceeds", re.IGNORECASE
)
_PER_DAY = re.compile(r"PerDay", re.IGNORECASE)
_NO_ALLOWANCE = re.compile(r"limit: 0\b")
_RETRY_IN = re.compile(r"retry in (\d+(?:\.\d+)?)\s*(ms|s)\b", re.IGNORECASE)
_DELAY = re.compile(r"(\d+(?:\.\d+)?)s")

_QUOTA_IDS = {Kind.QUOTA: "UpstreamQuotaPerDay", Kind.SPENT: "GatewayLimitPerDay"}
_TYPES = "type.googleapis.com/"
_DOMAIN = "dragoman"
_TOO_LONG_MESSAGE = "The input exceeds the maximum number of tokens"
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
    Kind.LIMITED: (429, "RESOURCE_EXHAUSTED"),
    Kind.SPENT: (429, "RESOURCE_EXHAUSTED"),
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


def read_failure(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    """Return the failure that an error response reports."""
    failure = read_error(find_error(body), status)
    if failure is None:
        kind = Kind.CONTEXT_TOO_LONG if _TOO_LONG.search(strip_html(body)) else kind_for_status(status)
        failure = Failure(kind, describe_error_page(status, body), status=status)
    wait = retry_after(headers)
    return failure if wait is None else msgspec.structs.replace(failure, retry_after=wait)


def read_error(error: object, status: int | None = None) -> Failure | None:
    """Return the failure that an error object reports, in a body or a stream; None if it reports nothing."""
    if not isinstance(error, dict):
        return None
    message, code, word = error.get("message"), error.get("code"), error.get("status")
    if message is None and code is None and word is None:
        return None
    if status is None and isinstance(code, int) and 400 <= code < 600:
        status = code
    text = message[:READ] if isinstance(message, str) and message else UNEXPLAINED
    details = error.get("details")
    found = [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
    kind = _choose_kind(status, word if isinstance(word, str) else "", text, found)
    return Failure(
        kind,
        clean_message(text),
        status=status,
        code=word if isinstance(word, str) and word else None,
        retry_after=_read_retry_delay(text, found),
    )


def find_error(body: bytes) -> object:
    """Return the error object of a body: under `error`, alone or in a list of one."""
    found = find_error_object(body)
    return None if found is None else found.get("error")


def _choose_kind(status: int | None, word: str, message: str, details: list[dict[str, object]]) -> Kind:
    if any(str(detail.get("reason")) in _BAD_KEY_REASONS for detail in details):
        return Kind.CREDENTIAL  # Google answers 400 to a bad key
    if status in (None, 400, 413) and _TOO_LONG.search(message):
        return Kind.CONTEXT_TOO_LONG
    named = _KIND_BY_STATUS.get(word)
    kind = named or (Kind.UPSTREAM if status is None else kind_for_status(status))
    if kind is Kind.RATE_LIMITED and _is_daily_quota(message, details):
        return Kind.QUOTA
    return kind


def _is_daily_quota(message: str, details: list[dict[str, object]]) -> bool:
    """Return whether the limit is one that waiting some seconds does not lift."""
    violations = [
        violation
        for detail in details
        if isinstance(listed := detail.get("violations"), list)
        for violation in listed
        if isinstance(violation, dict)
    ]
    daily = any(_PER_DAY.search(str(violation.get("quotaId", ""))) for violation in violations)
    return daily or _NO_ALLOWANCE.search(message) is not None


def _read_retry_delay(message: str, details: list[dict[str, object]]) -> float | None:
    """Return the seconds of RetryInfo, or those that the message names."""
    for detail in details:
        delay = detail.get("retryDelay")
        found = _DELAY.fullmatch(delay) if isinstance(delay, str) else None
        if found:
            return plausible_seconds(float(found[1]))
    named = _RETRY_IN.search(message)
    if named is None:
        return None
    return plausible_seconds(float(named[1]) * (0.001 if named[2].lower() == "ms" else 1.0))


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
        return f"{_TOO_LONG_MESSAGE}: {failure.message}"
    return failure.message


def _build_details(failure: Failure) -> list[Wire]:
    details: list[Wire] = []
    if failure.code is not None:
        info = {"reason": failure.code.upper(), "domain": _DOMAIN, "metadata": {}}
        details.append({"@type": f"{_TYPES}google.rpc.ErrorInfo", **info})
    if failure.at:
        violation = {"field": format_parameter(failure.at), "description": failure.message}
        details.append({"@type": f"{_TYPES}google.rpc.BadRequest", "fieldViolations": [violation]})
    quota = _QUOTA_IDS.get(failure.kind)
    if quota is not None and failure.retry_after is None:  # Gemini CLI stops retrying if the error names a day
        violation = {"quotaId": quota, "description": failure.message}
        details.append({"@type": f"{_TYPES}google.rpc.QuotaFailure", "violations": [violation]})
    if failure.retry_after is not None:
        wait = {"retryDelay": f"{math.ceil(failure.retry_after)}s"}
        details.append({"@type": f"{_TYPES}google.rpc.RetryInfo", **wait})
    if failure.detail is not None:
        details.append({"@type": f"{_TYPES}google.protobuf.Struct", "value": failure.detail})
    return details

"""Read the errors of Messages upstreams into failures, and render failures as Anthropic's errors."""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from dragoman.translate.framing.error_text import READ, clean_message, describe_error_page, kind_for_status, retry_after
from dragoman.translate.framing.jsonread import decode_or, replace_invalid_utf8
from dragoman.translate.framing.sse import encode_event
from dragoman.translate.hub.events import Started
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import ErrorResponse
from dragoman.translate.protocols.messages.wire import NOTHING, Fault, is_present

_TOO_LONG = "prompt is too long"

_RENDERED: dict[Kind, tuple[int, str]] = {
    Kind.BAD_REQUEST: (400, "invalid_request_error"),
    Kind.TOO_LARGE: (413, "request_too_large"),
    Kind.REQUEST_TIMEOUT: (408, "timeout_error"),
    Kind.AUTH: (401, "authentication_error"),
    Kind.CREDENTIAL: (502, "api_error"),  # a 401 would make the client suspect its own key
    Kind.FORBIDDEN: (403, "permission_error"),
    Kind.NOT_FOUND: (404, "not_found_error"),
    Kind.CONFLICT: (409, "conflict_error"),
    Kind.QUOTA: (402, "billing_error"),
    Kind.RATE_LIMITED: (429, "rate_limit_error"),
    Kind.LIMITED: (429, "rate_limit_error"),
    Kind.SPENT: (402, "billing_error"),
    Kind.OVERLOADED: (529, "overloaded_error"),
    Kind.BUSY: (529, "overloaded_error"),
    Kind.CONTEXT_TOO_LONG: (400, "invalid_request_error"),
    Kind.REFUSED: (400, "invalid_request_error"),
    Kind.TIMEOUT: (504, "timeout_error"),
    Kind.TRUNCATED: (502, "api_error"),
    Kind.CORRUPT: (502, "api_error"),
    Kind.LOST: (502, "api_error"),
    Kind.UPSTREAM: (502, "api_error"),
    Kind.BUG: (500, "api_error"),
    Kind.SHUTDOWN: (503, "api_error"),
}

_BY_TYPE = {
    "invalid_request_error": Kind.BAD_REQUEST,
    "authentication_error": Kind.CREDENTIAL,
    "billing_error": Kind.QUOTA,
    "insufficient_quota": Kind.QUOTA,
    "permission_error": Kind.FORBIDDEN,
    "not_found_error": Kind.NOT_FOUND,
    "conflict_error": Kind.CONFLICT,
    "request_too_large": Kind.TOO_LARGE,
    "rate_limit_error": Kind.RATE_LIMITED,
    "overloaded_error": Kind.OVERLOADED,
    "timeout_error": Kind.TIMEOUT,
}  # not "api_error": compatible servers write it for anything, and the status is more specific

_ANY_CASE = re.IGNORECASE
_MOST = re.compile(
    r"(?:maximum|limit|allowed|context (?:length|size|window))\D{0,60}?(?<![\w.-])(\d[\d,]{2,12})", _ANY_CASE
)
_COUNT = re.compile(r"(?<![\w.-])\d[\d,]{2,12}")
_CONTEXT = re.compile(r"prompt is too long|exceeds? (the )?(context|model)|context (length|window|limit)", _ANY_CASE)
_NO_CREDIT = re.compile(r"credit balance is too low|usage limits?\b.{0,200}\breached", _ANY_CASE)
_BAD_TOKEN = re.compile(
    r"\b(token|api[ -]?key)\b.{0,200}\b(invalid|expired|revoked|malformed)\b|\binvalid\b.{0,200}\b(token|key)\b",
    _ANY_CASE,
)


class _ErrorDetail(msgspec.Struct):
    type: str
    message: str


class ErrorShape(msgspec.Struct):
    type: Literal["error"]
    error: _ErrorDetail


class _Body(msgspec.Struct):
    error: Fault | str | None = None
    message: str | None = None
    detail: msgspec.Raw = NOTHING


_body = msgspec.json.Decoder(_Body)


def render_error(failure: Failure, request_id: str) -> ErrorResponse:
    """Return the error response, with the status that the official SDK maps to the right exception."""
    status = _RENDERED[_effective_kind(failure)][0]
    if failure.kind is Kind.UPSTREAM and failure.status == 500:
        status = 500
    body = {**_build_error(failure), "request_id": request_id}
    return ErrorResponse(status, msgspec.json.encode(body))


def encode_error_event(failure: Failure) -> bytes:
    """Return the event that replaces the end of a stream."""
    return encode_event(msgspec.json.encode(_build_error(failure)), b"error")


def render_stream_error(failure: Failure, started: Started | None, frames: int, stream_type: bytes) -> bytes:
    """Return what to append to a passthrough stream that ended without its terminal event."""
    return encode_error_event(failure)


def _build_error(failure: Failure) -> dict[str, object]:
    error: dict[str, object] = {"type": _RENDERED[_effective_kind(failure)][1], "message": _build_message(failure)}
    if failure.detail is not None:
        error["details"] = failure.detail
    elif failure.code is not None:
        error["details"] = {"error_code": failure.code}
    return {"type": "error", "error": error}


def _effective_kind(failure: Failure) -> Kind:
    """Return the kind to render: a quota that resets by itself is a rate limit, unless the vendor says 402."""
    comes_back = failure.retry_after is not None or failure.resets_at is not None
    return Kind.RATE_LIMITED if failure.kind is Kind.QUOTA and comes_back and failure.status != 402 else failure.kind


def _build_message(failure: Failure) -> str:
    if failure.kind is Kind.CONTEXT_TOO_LONG and not failure.message.lower().startswith(_TOO_LONG):
        # Clients compact the conversation when they read this, by as much as the numbers say.
        return f"{_TOO_LONG}: {_compare_tokens(failure.message) or failure.message}"
    if failure.at and failure.at not in failure.message:
        return f"{failure.at.strip('/').replace('/', '.')}: {failure.message}"
    return failure.message


def _compare_tokens(message: str) -> str:
    """Return how long the prompt is and may be, in Anthropic's words; empty if another vendor's do not say both."""
    limit = _MOST.search(message)
    if limit is None:
        return ""
    most = _read_count(limit[1])
    longest = max(map(_read_count, _COUNT.findall(message)))
    return f"{longest} tokens > {most} maximum" if longest > most else ""


def _read_count(text: str) -> int:
    return int(text.replace(",", ""))


def read_failure(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    """Return the failure that an error response reports."""
    fault = _read_fault(body)
    message = clean_message(fault.message or "") or describe_error_page(status, body)
    return Failure(
        kind=_choose_kind(fault, status),
        message=message,
        status=status,
        code=_fault_code(fault),
        retry_after=retry_after(headers),
        detail=fault.details,
    )


def read_error(fault: Fault | str | None) -> Failure:
    """Return the failure that an error event, or an error body with a good status, reports."""
    if not isinstance(fault, Fault):
        fault = Fault(message=fault)
    kind = _choose_kind(fault, None)
    message = clean_message(fault.message or "") or "the upstream reported an error without a message"
    return Failure(kind=kind, message=message, code=_fault_code(fault), detail=fault.details)


def _read_fault(body: bytes) -> Fault:
    answer = decode_or(_body, replace_invalid_utf8(body), _Body())
    if isinstance(answer.error, Fault):
        return answer.error
    detail = bytes(answer.detail).decode().strip('"') if is_present(answer.detail) else None
    return Fault(message=answer.error or answer.message or detail)


def _fault_code(fault: Fault) -> str | None:
    return None if fault.code is None else str(fault.code)


def _choose_kind(fault: Fault, status: int | None) -> Kind:
    message = (fault.message or "")[:READ]
    kind = _BY_TYPE.get(fault.type or "") or _BY_TYPE.get(_fault_code(fault) or "")
    if kind is None:
        kind = Kind.UPSTREAM if status is None else kind_for_status(status)
    if kind is Kind.BAD_REQUEST:
        if fault.code == "context_length_exceeded" or _CONTEXT.search(message):
            return Kind.CONTEXT_TOO_LONG
        return Kind.QUOTA if _NO_CREDIT.search(message) else kind
    if kind is Kind.FORBIDDEN and _BAD_TOKEN.search(message):
        return Kind.CREDENTIAL
    return kind

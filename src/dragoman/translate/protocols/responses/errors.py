"""Read the errors of Responses upstreams into failures, and render failures as OpenAI's errors."""

import re
from collections.abc import Mapping

import msgspec

from dragoman.translate.framing.error_text import (
    OPENAI_ERRORS,
    OPENAI_WORDS,
    clean_message,
    format_parameter,
    kind_for_status,
    plausible_seconds,
    retry_after,
    strip_html,
)
from dragoman.translate.framing.jsonread import decode_or
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import ErrorResponse
from dragoman.translate.protocols.responses import wire

_KIND_BY_WORD = OPENAI_WORDS | {  # the vendor's code, else its type
    "usage_limit_reached": Kind.QUOTA,
    "usage_not_included": Kind.QUOTA,
    "too_many_requests": Kind.RATE_LIMITED,
    "slow_down": Kind.OVERLOADED,
    "service_unavailable": Kind.OVERLOADED,
    "token_expired": Kind.CREDENTIAL,
    "token_invalidated": Kind.CREDENTIAL,
    "image_content_policy_violation": Kind.REFUSED,
    "bio_policy": Kind.REFUSED,
    "cyber_policy": Kind.REFUSED,
    "misalignment_policy_violation": Kind.REFUSED,
    "request_timeout": Kind.TIMEOUT,
    "vector_store_timeout": Kind.TIMEOUT,
    "invalid_prompt": Kind.BAD_REQUEST,
    "invalid_image": Kind.BAD_REQUEST,
    "invalid_image_format": Kind.BAD_REQUEST,
    "invalid_base64_image": Kind.BAD_REQUEST,
    "invalid_image_url": Kind.BAD_REQUEST,
    "image_too_large": Kind.BAD_REQUEST,
    "image_too_small": Kind.BAD_REQUEST,
    "image_parse_error": Kind.BAD_REQUEST,
    "image_file_too_large": Kind.BAD_REQUEST,
    "unsupported_image_media_type": Kind.BAD_REQUEST,
    "empty_image_file": Kind.BAD_REQUEST,
    "failed_to_download_image": Kind.BAD_REQUEST,
}

_RENDERED = OPENAI_ERRORS | {
    Kind.FORBIDDEN: (403, "permission_error", "permission_denied"),
    Kind.CONFLICT: (409, "conflict_error", "conflict"),
    Kind.SPENT: (429, "insufficient_quota", "insufficient_quota"),  # Codex repeats a request that gets 402
    Kind.OVERLOADED: (503, "server_error", "server_is_overloaded"),
    Kind.BUSY: (503, "server_error", "server_is_overloaded"),
    Kind.UPSTREAM: (502, "server_error", "server_error"),
    Kind.BUG: (500, "server_error", "server_error"),
    Kind.SHUTDOWN: (503, "server_error", "server_error"),
}

# Codes in streams: Codex acts on these and retries on every other one. An overload is temporary, but Codex gives up on
# `server_is_overloaded` and `slow_down`, so it is sent as a plain server error.
_STREAM_CODE = {
    Kind.CONTEXT_TOO_LONG: "context_length_exceeded",
    Kind.QUOTA: "insufficient_quota",
    Kind.RATE_LIMITED: "rate_limit_exceeded",
    Kind.LIMITED: "rate_limit_exceeded",
    Kind.SPENT: "insufficient_quota",
    Kind.BAD_REQUEST: "invalid_prompt",
    Kind.REFUSED: "invalid_prompt",
}

_TRY_AGAIN = re.compile(r"try again in\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s\b|seconds?)", re.IGNORECASE)
_TOO_LONG = re.compile(
    r"context (?:length|window)|context_(?:length|window)_exceeded|prompt is too long|maximum context"
    r"|too many (?:input )?tokens|input is too long",
    re.IGNORECASE,
)

_error_decoder = msgspec.json.Decoder(wire.Error)
_body_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_failure(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    """Return the failure that an error response reports."""
    error = _find_error(body)
    message = clean_message(error.message or "") if error else strip_html(body)
    message = message or f"the upstream answered HTTP {status} without a message"
    kind = _choose_kind(error, status, message)
    retry = retry_after(headers)
    if retry is None:
        retry = _retry_delay(error, message)
    resets_at = plausible_seconds(error.resets_at) if error else None
    return Failure(kind, message, status=status, code=_error_code(error), retry_after=retry, resets_at=resets_at)


def _find_error(body: bytes) -> wire.Error | None:
    """Return the error in a body: nested, flat, a bare string, or FastAPI's `detail`."""
    try:
        fields = _body_decoder.decode(body)
        inner = fields.get("error") or fields.get("detail")
        if inner is None:
            return _error_decoder.decode(body) if "message" in fields else None
        raw = bytes(inner)
        if raw.startswith(b"{"):
            return _error_decoder.decode(raw)
        return wire.Error(message=msgspec.json.decode(raw, type=str)) if raw.startswith(b'"') else None
    except (ValueError, RecursionError):
        return None


def read_stream_error(error: wire.Error) -> Failure:
    """Return the failure that an error within a stream reports."""
    message = clean_message(error.message or "") or "the upstream reported an error without a message"
    status = error.status or error.status_code
    return Failure(
        _choose_kind(error, status or 500, message),
        message,
        status=status,
        code=_error_code(error),
        retry_after=_retry_delay(error, message),
        resets_at=plausible_seconds(error.resets_at),
    )


def read_error(raw: msgspec.Raw) -> wire.Error | None:
    """Return the `error` of a stream event or response; None if it is null or not an error."""
    return decode_or(_error_decoder, raw, None)


def render_error(failure: Failure, request_id: str) -> ErrorResponse:
    """Return the response that the openai SDK maps to the right exception; it has no field for the request id."""
    status, type_, code = _RENDERED[failure.kind]
    if failure.kind is Kind.UPSTREAM and failure.status == 500:
        status = 500
    error = {
        "message": failure.message,
        "type": type_,
        "param": format_parameter(failure.at),
        "code": failure.code if _has_own_code(failure) else code,
    }
    return ErrorResponse(status, msgspec.json.encode({"error": error}))


def _has_own_code(failure: Failure) -> bool:
    """Return whether the failure's own code is more precise than that of its kind."""
    if failure.kind is Kind.NOT_FOUND:
        return failure.status is None
    return failure.kind is Kind.BAD_REQUEST and bool(failure.code)


def build_stream_error(failure: Failure) -> dict[str, str | None]:
    """Return the `error` of an error event; the failed response repeats code and message."""
    code = _STREAM_CODE.get(failure.kind, "server_error")
    if failure.kind is not Kind.OVERLOADED and failure.code and _KIND_BY_WORD.get(failure.code) is failure.kind:
        code = failure.code
    message = failure.message
    if failure.retry_after is not None and not _TRY_AGAIN.search(message):
        message = f"{message.rstrip()} Please try again in {failure.retry_after:g}s."
    return {
        "type": _RENDERED[failure.kind][1],
        "code": code,
        "message": message,
        "param": format_parameter(failure.at),
    }


def _choose_kind(error: wire.Error | None, status: int, message: str) -> Kind:
    if error is not None:
        for word in (error.code, error.type):
            if isinstance(word, str) and (kind := _KIND_BY_WORD.get(word)):
                return kind
    if status in (400, 413, 422, 500) and _TOO_LONG.search(message):
        return Kind.CONTEXT_TOO_LONG
    return kind_for_status(status)


def _error_code(error: wire.Error | None) -> str | None:
    if error is None:
        return None
    return str(error.code) if error.code is not None else error.type


def _retry_delay(error: wire.Error | None, message: str) -> float | None:
    if error is not None and (seconds := plausible_seconds(error.resets_in_seconds)) is not None:
        return seconds
    if found := _TRY_AGAIN.search(message):
        return float(found[1]) * (0.001 if found[2].lower() == "ms" else 1.0)
    return None


def read_unusable(body: bytes, why: str, code: str | None = None) -> Failure:
    """Return the failure of a reply that cannot be read: the error in its body, or `why` it cannot."""
    error = _find_error(body)
    if error is not None:
        return read_stream_error(error)
    seen = "it is HTML" if body.lstrip()[:1] == b"<" else why
    return Failure(Kind.CORRUPT, f"the upstream's reply cannot be read: {seen}", code=code)

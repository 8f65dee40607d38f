"""Read the errors of Chat upstreams into failures, and render failures as Chat errors."""

import re
from collections.abc import Mapping

import msgspec

from dragoman.translate.framing.error_text import (
    OPENAI_ERRORS,
    OPENAI_WORDS,
    READ,
    clean_message,
    describe_error_page,
    find_error_object,
    format_parameter,
    kind_for_status,
    retry_after,
    strip_html,
)
from dragoman.translate.framing.numbers import parse_number
from dragoman.translate.framing.sse import encode_event
from dragoman.translate.hub.events import Started
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import ErrorResponse

# What vendors write as error.code or error.type; the status decides where neither is listed.
_KIND_BY_WORD = OPENAI_WORDS | {
    "exceed_context_size_error": Kind.CONTEXT_TOO_LONG,
    "account_deactivated": Kind.CREDENTIAL,
    "permission_error": Kind.FORBIDDEN,
    "not_found_error": Kind.NOT_FOUND,
    "engine_overloaded": Kind.OVERLOADED,
}

UNEXPLAINED = "the upstream reported an error without a message"

_TOO_LONG = re.compile(
    r"context (?:length|window|size)|maximum context|prompt is too long|input is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"insufficient (?:balance|credits?|funds)|credit balance", re.IGNORECASE)


def read_failure(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    """Return the failure that an error response reports."""
    failure = read_error(find_error(body), status)
    if failure is None:
        failure = Failure(
            _choose_kind(status, "", "", strip_html(body)), describe_error_page(status, body), status=status
        )
    wait = retry_after(headers)
    return failure if wait is None else msgspec.structs.replace(failure, retry_after=wait)


def read_error(error: object, status: int | None = None) -> Failure | None:
    """Return the failure that an error object reports, in a body or a stream; None if it reports nothing."""
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        return None
    code = _as_word(error.get("code"))
    error_type = _as_word(error.get("type"))
    message = error.get("message") or error.get("detail") or error.get("msg")
    if message is None and not code and not error_type:
        return None
    number = parse_number(code)
    if status is None and number is not None and 400 <= number < 600:
        status = number  # OpenRouter writes the HTTP status here
    text = message if isinstance(message, str) else msgspec.json.encode(message or code or error_type).decode()
    return Failure(
        _choose_kind(status, code, error_type, text[:READ]),
        clean_message(text),
        status=status,
        code=(code if code and number is None else error_type) or None,
    )


def read_event_error(data: bytes) -> Failure:
    """Return the failure that a stream event named `error` reports, in whatever shape."""
    return read_error(find_error(data)) or Failure(Kind.UPSTREAM, strip_html(data) or UNEXPLAINED)


def render_error(failure: Failure, request_id: str) -> ErrorResponse:
    """Return the error response; Chat has no field for the request id."""
    status = OPENAI_ERRORS[failure.kind][0]
    if failure.kind is Kind.UPSTREAM and failure.status == 500:
        status = 500
    return ErrorResponse(status, _encode_error(failure))


def render_stream_error(failure: Failure, started: Started | None, frames: int, stream_type: bytes) -> bytes:
    """Return the event that ends a stream whose upstream did not; neither finish_reason nor [DONE] follow it."""
    return encode_error_event(failure)


def encode_error_event(failure: Failure) -> bytes:
    return encode_event(_encode_error(failure))


def _encode_error(failure: Failure) -> bytes:
    error_type = OPENAI_ERRORS[failure.kind][1]
    error = {
        "message": failure.message,
        "type": error_type,
        "param": format_parameter(failure.at),
        "code": _choose_code(failure),
    }
    return msgspec.json.encode({"error": error})


def _choose_code(failure: Failure) -> str | None:
    if failure.kind is Kind.NOT_FOUND and failure.status is None:
        return failure.code  # a path that does not exist is not an unknown model
    return OPENAI_ERRORS[failure.kind][2] or failure.code


def _choose_kind(status: int | None, code: str, error_type: str, message: str) -> Kind:
    if status in (None, 400, 413, 422) and _TOO_LONG.search(message):
        return Kind.CONTEXT_TOO_LONG
    if _NO_CREDIT.search(message):
        return Kind.QUOTA
    named = _KIND_BY_WORD.get(code) or _KIND_BY_WORD.get(error_type)
    if named is not None:
        return named
    if status is None:
        return Kind.BAD_REQUEST if error_type == "invalid_request_error" else Kind.UPSTREAM
    return kind_for_status(status)


def find_error(body: bytes) -> object:
    """Return the error object of a body: under `error`, in a list of one, or the body itself."""
    found = find_error_object(body)
    return None if found is None else found.get("error") or found


def _as_word(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""

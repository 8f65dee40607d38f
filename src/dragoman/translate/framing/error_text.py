"""Interpretation of error responses that all protocols share: status, retry headers, and text that is safe to show."""

import re
from collections.abc import Mapping

from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.request import split_pointer

SHOWN = 300
READ = 20_000  # characters of a message, or bytes of a page that is not an error body of the protocol

KIND_BY_STATUS: dict[int, Kind] = {
    401: Kind.CREDENTIAL,
    402: Kind.QUOTA,
    403: Kind.FORBIDDEN,
    404: Kind.NOT_FOUND,
    408: Kind.TIMEOUT,
    409: Kind.CONFLICT,
    413: Kind.TOO_LARGE,
    429: Kind.RATE_LIMITED,
    503: Kind.OVERLOADED,
    504: Kind.TIMEOUT,
    529: Kind.OVERLOADED,
}

# Upstreams quote keys, tokens and account names of the request.
_SECRET = re.compile(
    r"\b(?:(?:sk|pk|rk|ksk|sess|at|gh[opsu])[-_]|AIza|eyJ|ao[ar])[\w.*:+/=-]{6,}"
    r"|(?<=\bBearer )[^\s\"',;]{8,}"
    r"|(?<=\bapi[-_ ]key[=:])\s*[^\s\"',;]+"
    r"|\barn:aws\S*"
    r"|(?<=\bUser ID )\([^()]*\)",
    re.IGNORECASE,
)
_TAG = re.compile(r"<(script|style)\b(?:.*?</\1\s*>|.*)|<[^<>]*>", re.IGNORECASE | re.DOTALL)


def find_error_object(body: bytes) -> dict[str, object] | None:
    """Return the JSON object that a body is, alone or in a list of one; None for any other body."""
    value = parse_or(body, object, None)
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) else None


def kind_for_status(status: int) -> Kind:
    """Return the kind of failure that a status means, where the body is not more specific."""
    return KIND_BY_STATUS.get(status) or (Kind.UPSTREAM if status >= 500 else Kind.BAD_REQUEST)


def retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    """Return the seconds to wait, if the upstream states a number."""
    for name, unit in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < 1e9:
            return seconds
    return None


def plausible_seconds(seconds: float | None) -> float | None:
    """Return a duration or timestamp from an upstream; None if it is out of any plausible range."""
    return seconds if seconds is not None and 0 <= seconds < 1e11 else None


def format_parameter(pointer: str | None) -> str | None:
    """Return a JSON pointer in OpenAI's spelling of parameters: `/messages/0/content` is `messages[0].content`."""
    if not pointer:
        return None
    path = ""
    for name in split_pointer(pointer):
        path += f"[{name}]" if name.isdecimal() else f".{name}"
    return path.removeprefix(".")


def clean_message(text: str) -> str:
    """Return the text as one line of limited length, without secrets."""
    line = _SECRET.sub("[hidden]", " ".join(text[:READ].split()))
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


def strip_html(body: bytes) -> str:
    """Return the text of an HTML page."""
    return clean_message(_TAG.sub(" ", body[:READ].decode(errors="replace")))


def describe_error_page(status: int, body: bytes) -> str:
    """Return a message for an error response whose body the protocol does not define."""
    text = strip_html(body)
    return (
        f"the upstream returned HTTP {status}: {text}"
        if text
        else f"the upstream returned HTTP {status} without a message"
    )


# OpenAI's errors: status, error.type, error.code (None: the vendor's own code, if there was one)
OPENAI_ERRORS: dict[Kind, tuple[int, str, str | None]] = {
    Kind.BAD_REQUEST: (400, "invalid_request_error", None),
    Kind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    Kind.REQUEST_TIMEOUT: (408, "invalid_request_error", "request_timeout"),
    Kind.AUTH: (401, "invalid_request_error", "invalid_api_key"),
    Kind.CREDENTIAL: (502, "server_error", "upstream_credential_refused"),
    Kind.FORBIDDEN: (403, "permission_error", None),
    Kind.NOT_FOUND: (404, "invalid_request_error", "model_not_found"),
    Kind.CONFLICT: (409, "conflict_error", None),
    Kind.QUOTA: (429, "insufficient_quota", "insufficient_quota"),
    Kind.RATE_LIMITED: (429, "rate_limit_error", "rate_limit_exceeded"),
    Kind.LIMITED: (429, "rate_limit_error", "rate_limit_exceeded"),
    Kind.SPENT: (402, "insufficient_quota", "insufficient_quota"),
    Kind.OVERLOADED: (503, "server_error", None),
    Kind.BUSY: (503, "server_error", None),
    Kind.CONTEXT_TOO_LONG: (400, "invalid_request_error", "context_length_exceeded"),
    Kind.REFUSED: (400, "invalid_request_error", "content_policy_violation"),
    Kind.TIMEOUT: (504, "server_error", "timeout"),
    Kind.TRUNCATED: (502, "server_error", "upstream_truncated"),
    Kind.CORRUPT: (502, "server_error", "upstream_corrupt"),
    Kind.LOST: (502, "server_error", "upstream_lost"),
    Kind.UPSTREAM: (502, "server_error", None),
    Kind.BUG: (500, "server_error", "internal_error"),
    Kind.SHUTDOWN: (503, "server_error", "shutting_down"),
}

# What OpenAI and its imitators write as error.code or error.type, whatever the protocol.
OPENAI_WORDS: dict[str, Kind] = {
    "context_length_exceeded": Kind.CONTEXT_TOO_LONG,
    "insufficient_quota": Kind.QUOTA,
    "billing_hard_limit_reached": Kind.QUOTA,
    "billing_not_active": Kind.QUOTA,
    "billing_error": Kind.QUOTA,
    "rate_limit_exceeded": Kind.RATE_LIMITED,
    "rate_limit_error": Kind.RATE_LIMITED,
    "invalid_api_key": Kind.CREDENTIAL,
    "authentication_error": Kind.CREDENTIAL,
    "model_not_found": Kind.NOT_FOUND,
    "content_policy_violation": Kind.REFUSED,
    "content_filter": Kind.REFUSED,
    "server_is_overloaded": Kind.OVERLOADED,
    "overloaded_error": Kind.OVERLOADED,
    "request_too_large": Kind.TOO_LARGE,
    "timeout": Kind.TIMEOUT,
}

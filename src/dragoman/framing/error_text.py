"""What all error answers have in common: status, headers and words come in; their meaning, safe to show, goes out."""

import re
from collections.abc import Mapping

from dragoman.hub.failure import Kind
from dragoman.hub.request import split_pointer

SHOWN = 300
READ = 20_000  # of a page that is no error body

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

# Upstreams quote what they were sent: keys, tokens, and names of accounts.
_SECRET = re.compile(
    r"\b(?:(?:sk|pk|rk|ksk|sess|at|gh[opsu])[-_]|AIza|eyJ|ao[ar])[\w.*:+/=-]{6,}"
    r"|(?<=\bBearer )[^\s\"',;]{8,}"
    r"|(?<=\bapi[-_ ]key[=:])\s*[^\s\"',;]+"
    r"|\barn:aws\S*"
    r"|(?<=\bUser ID )\([^)]*\)",
    re.IGNORECASE,
)
_TAG = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^<>]*>", re.IGNORECASE | re.DOTALL)


def kind_for_status(status: int) -> Kind:
    """What a status means where the body does not say more."""
    return KIND_BY_STATUS.get(status) or (Kind.UPSTREAM if status >= 500 else Kind.BAD_REQUEST)


def retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    """Seconds to wait, if the upstream names a number of them."""
    for name, unit in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < 1e9:
            return seconds
    return None


def plausible_seconds(told: float | None) -> float | None:
    """Return a number of seconds, or a moment, that an upstream has told; None where it cannot be meant."""
    return told if told is not None and 0 <= told < 1e11 else None


def format_parameter(pointer: str | None) -> str | None:
    """A JSON pointer as OpenAI names a parameter: `/messages/0/content` is `messages[0].content`."""
    if not pointer:
        return None
    path = ""
    for name in split_pointer(pointer):
        path += f"[{name}]" if name.isdecimal() else f".{name}"
    return path.removeprefix(".")


def clean_message(text: str) -> str:
    """One line without secrets, not too long."""
    line = _SECRET.sub("[hidden]", " ".join(text.split()))
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


def strip_html(body: bytes) -> str:
    """The words of a page, without its tags."""
    return clean_message(_TAG.sub(" ", body[:READ].decode(errors="replace")))


def describe_error_page(status: int, body: bytes) -> str:
    """What to say of an answer that is no error body."""
    text = strip_html(body)
    return f"the upstream answered {status}: {text}" if text else f"the upstream answered {status} without a message"

"""Read the JSON body of a write, and the version that it expects. Every error names the field."""

import re
from typing import TypeVar

import msgspec
from msgspec import Struct

from dragoman.http.api.parameters import Parameters
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError

T = TypeVar("T")

MAX_BYTES = 2 * 1024 * 1024
PLACE = re.compile(r" - at `\$\.?(.*)`$")
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")
MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")
VERSION = re.compile(rb'(?:W/)?"(\d{1,18})"')
IF_MATCH = "If-Match"


class NoFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a write that needs none."""


async def read_body(request: RoutedRequest, kind: type[T]) -> T:
    """Return the body as a struct of this type, which should forbid unknown fields. Writes have no parameters."""
    Parameters(request.exchange.query, ())
    content_type = (request.exchange.headers.get(b"content-type") or b"").partition(b";")[0].strip().lower()
    if content_type != b"application/json":
        message = "Send the body as JSON, with `content-type: application/json`."
        raise RequestError(Failure(Kind.BAD_REQUEST, message, code="unsupported_media_type"))
    body = await request.exchange.body()
    if len(body) > MAX_BYTES:
        raise RequestError(Failure(Kind.TOO_LARGE, f"The body has more than {MAX_BYTES} bytes."))
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        field, message = _name_field(str(error))
        raise BadRequest(f"/{field}", message) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest("/", f"The body is not valid JSON: {error}") from None


def read_version(request: RoutedRequest) -> int | None:
    """Return the version in If-Match, which a write must find; None if any will do."""
    given = request.exchange.headers.get(b"if-match")
    if given is None or given.strip() == b"*":
        return None
    match = VERSION.fullmatch(given.strip())
    if match is None:
        raise BadRequest(f"/{IF_MATCH}", 'If-Match must be the ETag of an earlier response, such as "3", or *.')
    return int(match[1])


def _name_field(message: str) -> tuple[str, str]:
    """Return the field at fault, and the message without its place."""
    place = PLACE.search(message)
    field = place[1] if place else ""
    text = PLACE.sub("", message)
    for pattern in (UNKNOWN_FIELD, MISSING_FIELD):
        named = pattern.search(text)
        if named:
            field = f"{field}.{named[1]}" if field else named[1]
    return field, f"{field}: {text}." if field else f"{text}."

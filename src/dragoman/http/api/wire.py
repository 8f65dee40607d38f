"""Read requests of the admin API (parameters, pages, bodies, versions) and respond. Every error names the field."""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.admin import AdminError, Conflict, InvalidArgument, NotFound
from dragoman.flow.response_headers import request_id_headers
from dragoman.http.models import read_parameters
from dragoman.http.routes import RoutedRequest, read_short_body
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.hub.ports import Client, ErrorResponse
from dragoman.net.headers import JSON, Header
from dragoman.store import StoreError
from dragoman.store.usage_rows import MAX_PAGE

WHOLE_NUMBER = re.compile("[0-9]{1,18}")
MAX_TEXT = 200
CURSOR = "cursor"
LIMIT = "limit"
CLIENT_KEY = "key"  # some clients send their key in the query
T = TypeVar("T")

MAX_BODY_BYTES = 2 * 1024 * 1024
BODY_TIMEOUT_S = 60.0
PLACE = re.compile(r" - at `\$\.?(.*)`$")
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")
MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")
VERSION = re.compile(rb'(?:W/)?"(\d{1,18})"')
IF_MATCH = "If-Match"
PRIVATE: tuple[Header, ...] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
KINDS = {NotFound: Kind.NOT_FOUND, Conflict: Kind.CONFLICT, InvalidArgument: Kind.BAD_REQUEST}

PREFIX = "/api/v1/"
STATUSES = {"unsupported_media_type": 415, "version_mismatch": 412, "version_required": 428}  # of codes of this API


class Parameters:
    """The parameters of one query. Raises BadRequest for one that the path does not have."""

    def __init__(self, query: str, known: Collection[str]) -> None:
        self._values = {name: value for name, value in read_parameters(query).items() if name != CLIENT_KEY}
        for name in self._values:
            if name not in known:
                shown = name[:MAX_TEXT].encode(errors="replace").decode()
                offered = ", ".join(known) or "none"
                raise BadRequest(f"/{shown}", f"There is no parameter {shown!r} here. Possible: {offered}.")

    def text(self, name: str) -> str | None:
        """Return a short printable text, or None if it is not given."""
        value = self._values.get(name)
        if value is not None and (len(value) > MAX_TEXT or not value.isprintable()):
            raise BadRequest(f"/{name}", f"{name} must be printable and have at most {MAX_TEXT} characters.")
        return value

    def number(self, name: str, absent: int) -> int:
        value = self._values.get(name)
        if value is None:
            return absent
        if not WHOLE_NUMBER.fullmatch(value):
            raise BadRequest(f"/{name}", f"{name} must be a whole number that is not negative.")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self._values.get(name, "0")
        if value not in ("0", "1"):
            raise BadRequest(f"/{name}", f"{name} must be 0 or 1.")
        return value == "1"

    def limit(self) -> int:
        """Return how many items a page has at most."""
        value = self.number(LIMIT, MAX_PAGE)
        if not 1 <= value <= MAX_PAGE:
            raise BadRequest(f"/{LIMIT}", f"{LIMIT} must be between 1 and {MAX_PAGE}.")
        return value

    def cursor(self) -> bytes | None:
        """Return what the cursor of the page before holds, or None for the first page."""
        value = self._values.get(CURSOR)
        if value is None:
            return None
        try:
            return urlsafe_b64decode(value.encode())
        except (binascii.Error, UnicodeEncodeError):
            raise invalid_cursor() from None


def make_cursor(position: bytes) -> str:
    return urlsafe_b64encode(position).decode()


def invalid_cursor() -> BadRequest:
    return BadRequest(f"/{CURSOR}", "The cursor is not valid: use `next` of the page before, unchanged.")


class NoFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a write that needs none."""


async def read_body(request: RoutedRequest, kind: type[T]) -> T:
    """Return the body as a struct of this type, which should forbid unknown fields. Writes have no parameters."""
    Parameters(request.http.query, ())
    content_type = (request.http.headers.get(b"content-type") or b"").partition(b";")[0].strip().lower()
    if content_type != b"application/json":
        message = "Send the body as JSON, with `content-type: application/json`."
        raise RequestError(Failure(Kind.BAD_REQUEST, message, code="unsupported_media_type"))
    body = await read_short_body(request.http, MAX_BODY_BYTES, BODY_TIMEOUT_S)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        field, message = _name_field(str(error))
        raise BadRequest(f"/{field}", message) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest("/", f"The body is not valid JSON: {error}") from None


def read_version(request: RoutedRequest) -> int | None:
    """Return the version in If-Match, which a write must find; None if any will do."""
    given = request.http.headers.get(b"if-match")
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


def respond(request: RoutedRequest, value: object, headers: Sequence[Header] = (), status: int = 200) -> None:
    """Respond with a value as JSON, which must not be cached or read as another type."""
    respond_bytes(request, msgspec.json.encode(value), headers, status)


def respond_bytes(request: RoutedRequest, body: bytes, headers: Sequence[Header] = (), status: int = 200) -> None:
    request.sink.respond(status, [JSON, *response_headers(request), *headers], body)


def response_headers(request: RoutedRequest) -> list[Header]:
    """Return the headers of every response, without its type."""
    return [*request_id_headers(request.request_id), *PRIVATE]


@contextmanager
def convert_errors(field: str | None = None) -> Iterator[None]:
    """Raise errors of `admin/` and the store as RequestError; `field` is the one at fault, if it is one."""
    try:
        yield
    except AdminError as error:
        kind = KINDS.get(type(error), Kind.BAD_REQUEST)
        at = None if field is None else f"/{field}"
        raise RequestError(Failure(kind, str(error), at=at)) from error
    except (StoreError, TimeoutError) as error:
        raise RequestError(Failure(Kind.OVERLOADED, "The store cannot be read or written just now.")) from error


def use_api_errors(client: Client) -> Client:
    """Return a client record whose errors have the admin API's shape, with the same statuses."""
    return replace(client, render_error=partial(_render_error, client))


def _render_error(client: Client, failure: Failure, request_id: str) -> ErrorResponse:
    error = {
        "code": failure.code or failure.kind.value,
        "message": failure.message,
        "field": None if failure.at is None else failure.at.removeprefix("/"),
        "request_id": request_id,
    }
    status = STATUSES.get(failure.code or "") or client.render_error(failure, request_id).status
    return ErrorResponse(status, msgspec.json.encode({"error": error}))

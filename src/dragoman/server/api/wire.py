"""Operations of the admin API: what each takes and answers. Read their requests (parameters, pages, bodies, versions)
and respond. Every error names the field.
"""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.headers import JSON, Header
from dragoman.operate import AdminError, Conflict, InvalidArgument, NotFound, VersionMismatch
from dragoman.proxy.response_headers import request_id_headers
from dragoman.server.models import read_parameters
from dragoman.server.routes import Handler, RoutedRequest, read_short_body
from dragoman.store import StoreError
from dragoman.store.usage_rows import MAX_PAGE
from dragoman.translate.framing.jsonscan import find_repeated_key
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.ports import Client, ErrorResponse

WHOLE_NUMBER = re.compile("[0-9]{1,18}")
MAX_TEXT = 200
CURSOR = "cursor"
LIMIT = "limit"
CLIENT_KEY = "key"  # some clients send their key in the query
T = TypeVar("T")
Reply = TypeVar("Reply")
Body = TypeVar("Body")
Part = TypeVar("Part")

MAX_BODY_BYTES = 2 * 1024 * 1024
BODY_TIMEOUT_S = 60.0
PLACE = " - at `$"  # what msgspec writes before the path of an error
NAMING_FIELD = ("Object contains unknown field `", "Object missing required field `")
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


def forbid_field(message: str, field: str) -> RequestError:
    return RequestError(Failure(Kind.FORBIDDEN, message, code="scope_required", at=f"/{field}"))


class QueryParameter(Struct, frozen=True):
    """A parameter of a query, with the JSON schema of its value."""

    name: str
    about: str
    schema: Mapping[str, object]


def text_parameter(name: str, about: str) -> QueryParameter:
    return QueryParameter(name, about, {"type": "string", "maxLength": MAX_TEXT})


def number_parameter(name: str, about: str) -> QueryParameter:
    return QueryParameter(name, about, {"type": "integer", "minimum": 0})


def choice_parameter(name: str, about: str, choices: Collection[str]) -> QueryParameter:
    return QueryParameter(name, about, {"enum": list(choices)})


PAGE = (
    QueryParameter(
        LIMIT,
        "How many items a page has at most.",
        {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": MAX_PAGE},
    ),
    QueryParameter(CURSOR, "`next` of the page before, unchanged.", {"type": "string"}),
)
JSON_LINES = "application/x-ndjson"
JSON_LINES_TYPE: Header = (b"content-type", JSON_LINES.encode())

# What an operation has to do with versions: its replies have an ETag; If-Match is also checked; it is also required.
Versioning = Literal["none", "sent", "checked", "required"]
IDEMPOTENCY_KEY = "Idempotency-Key"
MAX_IDEMPOTENCY_KEY = 255


class Description(Struct, frozen=True):
    """What a path of the API takes and answers."""

    summary: str
    replies: tuple[type, ...]  # a reply, or each of its lines, is of one of these types
    query: tuple[QueryParameter, ...] = ()
    media_types: tuple[str, ...] = ("application/json",)
    status: int = 200
    versioning: Versioning = "none"
    refusals: Mapping[int, type] = {}  # replies that are no errors, and say why nothing was done


class Operation(Description, Generic[Reply], frozen=True):
    """Reads the requests to a path and responds, as its description says."""

    replies: tuple[type[Reply], ...]

    def handled_by(self, method: Callable[[Part, RoutedRequest], Awaitable[None]]) -> "ApiEndpoint[Part]":
        """Decorate the method that handles the operation."""
        return ApiEndpoint(self, method)

    def read_query(self, request: RoutedRequest) -> Parameters:
        """Return the parameters. Raises BadRequest for one that the operation does not have."""
        return Parameters(request.http.query, tuple(parameter.name for parameter in self.query))

    def encode(self, reply: Reply) -> bytes:
        return msgspec.json.encode(reply)

    def respond(self, request: RoutedRequest, reply: Reply, headers: Sequence[Header] = ()) -> None:
        respond_bytes(request, self.encode(reply), headers, self.status)


class Write(Operation[Reply], Generic[Reply, Body], frozen=True, kw_only=True):
    """An operation with a body, a struct that should forbid unknown fields. It has no parameters."""

    body: type[Body]
    repeatable: bool = False  # with an Idempotency-Key, its answer is the same for a day

    async def read_body(self, request: RoutedRequest) -> Body:
        self.read_query(request)
        return await _read_body(request, self.body)


class DescribedHandler(Struct, frozen=True):
    name: str
    operation: Description
    handle: Handler


class ApiEndpoint(Generic[Part]):
    """A method of a part of the API, with its operation."""

    def __init__(self, operation: Description, method: Callable[[Part, RoutedRequest], Awaitable[None]]) -> None:
        self._operation = operation
        self._method = method

    def __get__(self, part: Part, owner: type[Part]) -> DescribedHandler:
        return DescribedHandler(self._method.__name__, self._operation, partial(self._method, part))


class NoFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a write that needs none."""


class ApiError(Struct, frozen=True):
    """Why nothing was done. `field` is the parameter or the field at fault."""

    code: str
    message: str
    field: str | None
    request_id: str


class ErrorBody(Struct, frozen=True):
    """The body of every error."""

    error: ApiError


async def _read_body(request: RoutedRequest, kind: type[T]) -> T:
    content_type = (request.http.headers.get(b"content-type") or b"").partition(b";")[0].strip().lower()
    if content_type != b"application/json":
        message = "Send the body as JSON, with `content-type: application/json`."
        raise RequestError(Failure(Kind.BAD_REQUEST, message, code="unsupported_media_type"))
    body = await read_short_body(request.http, MAX_BODY_BYTES, BODY_TIMEOUT_S)
    try:
        read = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        field, message = _name_field(str(error))
        raise BadRequest(f"/{field}", message) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest("/", f"The body is not valid JSON: {error}") from None
    repeated = find_repeated_key(body)
    if repeated is not None:  # parsers differ in which of the values counts
        raise BadRequest(f"/{repeated}", f"{repeated} is given twice: write one value.")
    return read


def read_version(request: RoutedRequest) -> int | None:
    """Return the version in If-Match, which a write must find; None if any will do."""
    given = request.http.headers.get(b"if-match")
    if given is None or given.strip() == b"*":
        return None
    match = VERSION.fullmatch(given.strip())
    if match is None:
        raise BadRequest(f"/{IF_MATCH}", 'If-Match must be the ETag of an earlier response, such as "3", or *.')
    return int(match[1])


def read_idempotency_key(request: RoutedRequest) -> str | None:
    given = request.http.headers.get(IDEMPOTENCY_KEY.lower().encode())
    if given is None:
        return None
    text = given.decode("latin-1")
    if not 0 < len(text) <= MAX_IDEMPOTENCY_KEY or not (text.isascii() and text.isprintable()):
        message = f"{IDEMPOTENCY_KEY} must be printable ASCII of at most {MAX_IDEMPOTENCY_KEY} characters."
        raise BadRequest(f"/{IDEMPOTENCY_KEY}", message)
    return text


def make_etag(version: int) -> Header:
    return b"etag", f'"{version}"'.encode()


def _name_field(message: str) -> tuple[str, str]:
    """Return the field at fault, and the message without its place; both are short, whatever a client calls a field."""
    text, is_placed, place = message.rpartition(PLACE)
    if not is_placed or not place.endswith("`"):
        text, place = message, ""
    field = place.removesuffix("`").removeprefix(".")
    for words in NAMING_FIELD:
        if text.startswith(words):
            named = text.removeprefix(words).removesuffix("`")
            field = f"{field}.{named}" if field else named
    field, text = field[:MAX_TEXT], text[:MAX_TEXT]
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
    """Raise errors of `operate/` and the store as RequestError; `field` is the one at fault, if it is one."""
    try:
        yield
    except VersionMismatch as error:
        raise RequestError(Failure(Kind.CONFLICT, str(error), code="version_mismatch", at=f"/{IF_MATCH}")) from error
    except AdminError as error:
        kind = KINDS.get(type(error), Kind.BAD_REQUEST)
        named = error.field if isinstance(error, InvalidArgument) and error.field else field
        at = None if named is None else f"/{named}"
        raise RequestError(Failure(kind, str(error), at=at)) from error
    except (StoreError, TimeoutError) as error:
        raise RequestError(Failure(Kind.OVERLOADED, "The store cannot be read or written just now.")) from error


def use_api_errors(client: Client) -> Client:
    """Return a client record whose errors have the admin API's shape, with the same statuses."""
    return replace(client, render_error=partial(_render_error, client))


def _render_error(client: Client, failure: Failure, request_id: str) -> ErrorResponse:
    field = None if failure.at is None else failure.at.removeprefix("/")
    error = ApiError(failure.code or failure.kind.value, failure.message, field, request_id)
    status = STATUSES.get(failure.code or "") or client.render_error(failure, request_id).status
    return ErrorResponse(status, msgspec.json.encode(ErrorBody(error)))

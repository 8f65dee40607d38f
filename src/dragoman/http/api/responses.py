"""Responses of the admin API, and errors of `admin/` and the store as failures."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
from msgspec.structs import replace

from dragoman.admin.errors import AdminError, Conflict, InvalidArgument, NotFound
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.ports import Client, ErrorResponse
from dragoman.net.headers import JSON, Header
from dragoman.store import StoreError

PRIVATE: tuple[Header, ...] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
KINDS = {NotFound: Kind.NOT_FOUND, Conflict: Kind.CONFLICT, InvalidArgument: Kind.BAD_REQUEST}

PREFIX = "/api/v1/"
STATUSES = {"unsupported_media_type": 415, "version_mismatch": 412, "version_required": 428}  # of codes of this API


def respond(request: RoutedRequest, value: object, headers: Sequence[Header] = (), status: int = 200) -> None:
    """Respond with a value as JSON, which must not be cached or read as another type."""
    respond_bytes(request, msgspec.json.encode(value), headers, status)


def respond_bytes(request: RoutedRequest, body: bytes, headers: Sequence[Header] = (), status: int = 200) -> None:
    request.exchange.respond(status, [JSON, *response_headers(request), *headers], body)


def response_headers(request: RoutedRequest) -> list[Header]:
    """Return the headers of every response, without its type."""
    return [(b"x-request-id", request.request_id.encode()), *PRIVATE]


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

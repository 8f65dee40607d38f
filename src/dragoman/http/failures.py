"""Failures of requests that never reach a handler: without a valid key, or unreadable."""

import secrets

from dragoman.flow.reading import no_room_failure
from dragoman.flow.response_headers import id_headers
from dragoman.http.routes import client_at, plain_path
from dragoman.hub.failure import Failure, Kind
from dragoman.net.errors import BodyTooLarge, BufferBudgetExceeded, RequestRejected
from dragoman.net.exchange import Exchange
from dragoman.net.headers import JSON, Header
from dragoman.protocols import PROTOCOLS, find_client_keys

TRANSPORT_KINDS = {413: Kind.TOO_LARGE, 408: Kind.REQUEST_TIMEOUT, 500: Kind.BUG, 503: Kind.OVERLOADED}


def key_failure(exchange: Exchange) -> Failure:
    """Return what is wrong with the key of a request that is not authenticated."""
    if not find_client_keys(exchange.headers.lasting, exchange.query):
        return Failure(Kind.AUTH, "No API key was given: send it as a bearer token or in x-api-key.")
    return Failure(Kind.AUTH, "The API key is not valid here; `dragoman keys create` makes one.")


def transport_failure(rejected: RequestRejected) -> Failure:
    """Return the failure of a request that could not be read."""
    if isinstance(rejected, BufferBudgetExceeded):
        return no_room_failure()
    if isinstance(rejected, BodyTooLarge):
        return Failure(Kind.TOO_LARGE, f"{rejected.message} (server.max_body_mb)")
    kind = Kind.REQUEST_TIMEOUT if rejected.status == 408 else Kind.BAD_REQUEST
    return Failure(kind, rejected.message)


def render_transport_error(path: str, status: int, message: str) -> tuple[list[Header], bytes]:
    """Return headers and body of an error that the server itself sends, in the protocol of the path."""
    client = client_at("GET", plain_path(path), PROTOCOLS, lambda name: None)
    failure = Failure(TRANSPORT_KINDS.get(status, Kind.BAD_REQUEST), message)
    request_id = "req_" + secrets.token_hex(12)
    head = [JSON, *id_headers(client, request_id, [])]
    if status == 503:
        head.append((b"retry-after", b"1"))
    return head, client.render_error(failure, request_id).body

"""Failures of requests that never reach a handler: without a valid key, or unreadable."""

from dragoman.flow.reading import no_room_failure
from dragoman.hub.failure import Failure, Kind
from dragoman.net.errors import BodyTooLarge, BufferBudgetExceeded, RequestRejected
from dragoman.net.exchange import Exchange
from dragoman.protocols import find_client_keys


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

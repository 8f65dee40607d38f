"""Read upstream bodies to their end, bounded in size, in time and by the budget of all requests."""

from collections.abc import Coroutine
from functools import partial

from dragoman.flow.call import Call
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.bodies import BudgetShare
from dragoman.net.client import IncomingResponse
from dragoman.net.errors import BufferBudgetExceeded
from dragoman.net.response_body import read_chunks

MAX_REPLY_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 1024 * 1024
ERROR_BODY_S = 30.0  # in all: an error is short, and a client waits for it
BUSY_S = 1.0  # when to try again where the gateway holds as many bytes as it may


def read_reply(
    call: Call, answer: IncomingResponse, silence_s: float, total_s: float, where: str
) -> Coroutine[object, object, bytes]:
    """Return the body of a whole reply, counted in what the request holds.

    Raises UpstreamTimeout, SizeLimitExceeded, ConnectionLost or RequestError.
    """
    return read_chunks(answer, MAX_REPLY_BYTES, silence_s, where, total_s, partial(charge_bytes, call.buffered))


def read_error(answer: IncomingResponse, silence_s: float) -> Coroutine[object, object, bytes]:
    return read_chunks(answer, MAX_ERROR_BYTES, silence_s, "the upstream", ERROR_BODY_S)


def charge_bytes(charge: BudgetShare, size: int) -> None:
    """Count bytes of a reply; raises RequestError where there is no room for them."""
    try:
        charge.hold(size)
    except BufferBudgetExceeded:
        raise RequestError(no_room_failure()) from None


def no_room_failure() -> Failure:
    message = "The gateway buffers as many bytes as it may (server.max_buffered_mb). Retry in 1 s."
    return Failure(Kind.BUSY, message, retry_after=BUSY_S)

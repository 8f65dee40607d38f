"""Errors of connections, clients and upstreams, each named for what a caller may do about it; how one is logged."""

import traceback
from typing import Literal

TimeoutPhase = Literal["connect", "first", "idle"]


class ConnectionLost(Exception):
    """The connection could not be opened, or broke before the end of the response.

    The message is safe to show: it names host and port, never a path, query, header or password.
    """

    def __init__(self, message: str, *, sent: bool, received: bool, stale: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.received = received
        self.stale = stale  # a reused connection that ended without a byte of response: probably closed while idle

    def copy(self) -> "ConnectionLost":
        """Return an equal exception to raise: the traceback of a stored one would keep its frames alive."""
        return type(self)(str(self), sent=self.sent, received=self.received, stale=self.stale)

    def as_stale(self) -> "ConnectionLost":
        return type(self)(str(self), sent=self.sent, received=self.received, stale=True)


class InvalidResponse(ConnectionLost):
    """The response is not valid HTTP, or not in the encoding that it declares."""


class UpstreamTimeout(Exception):
    """The upstream sent nothing for too long, in the named phase."""

    def __init__(self, phase: TimeoutPhase, message: str) -> None:
        super().__init__(message)
        self.phase = phase


class SizeLimitExceeded(Exception):
    """A body exceeds its size limit, as sent or decompressed."""


class InvalidEncoding(Exception):
    """A body does not match its content-encoding, or the encoding is unknown."""


class RequestRejected(Exception):
    """A request that is rejected; `message` is safe to show to the client."""

    status = 400

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status

    def copy(self) -> "RequestRejected":
        """Return an equal exception to raise: the traceback of a stored one would keep its frames alive."""
        return type(self)(self.message, self.status)


class HeadRejected(RequestRejected):
    """The request line or a header field is malformed, ambiguous or too large."""


class MalformedBody(RequestRejected):
    """The chunked coding of the body is malformed."""


class BodyTooLarge(RequestRejected):
    status = 413


class BodyTimeout(RequestRejected):
    status = 408


class ClientDisconnected(Exception):
    """The client closed its connection before the response was complete."""


class ResponseOrderError(Exception):
    """The methods of a sink were called in an invalid order."""


class BufferBudgetExceeded(RequestRejected):
    """All requests together hold as many body bytes as the budget allows."""

    status = 503


def describe_fault(fault: BaseException) -> str:
    """Return the type of an exception and where it was raised, without its text, which may quote a secret."""
    frames = traceback.extract_tb(fault.__traceback__)[-4:]
    path = " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(fault).__name__} at {path or 'unknown place'}"

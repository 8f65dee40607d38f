"""Errors of connections, clients and upstreams, each named for what a caller may do about it."""

from typing import Literal

TimeoutPhase = Literal["connect", "first", "idle"]


class ConnectionLost(Exception):
    """The connection could not be made, or broke before the answer's declared end.

    The message is safe to show: it names host and port, never a path, query, header or password.
    """

    stale = False  # it had served before and ended without a byte of answer: likely it was only old

    def __init__(self, message: str, *, sent: bool, received: bool) -> None:
        super().__init__(message)
        self.sent = sent
        self.received = received

    def copy(self) -> "ConnectionLost":
        """An equal one to raise: a traceback would tie whoever keeps this one to all that its frames hold."""
        twin = type(self)(str(self), sent=self.sent, received=self.received)
        twin.stale = self.stale
        return twin


class InvalidResponse(ConnectionLost):
    """The peer answered with something that is not the HTTP or the encoding it claims."""


class UpstreamTimeout(Exception):
    """The peer was silent for too long, in the named phase."""

    def __init__(self, phase: TimeoutPhase, message: str) -> None:
        super().__init__(message)
        self.phase = phase


class SizeLimitExceeded(Exception):
    """A body, as sent or once decompressed, exceeds the limit given."""


class InvalidEncoding(Exception):
    """A body is not what its content-encoding says, or the encoding is unknown."""


class RequestRejected(Exception):
    """A request that cannot be served; `message` is safe to show to the client."""

    status = 400

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status

    def copy(self) -> "RequestRejected":
        """An equal one to raise: a traceback would tie whoever keeps this one to all that its frames hold."""
        return type(self)(self.message, self.status)


class HeadRejected(RequestRejected):
    """The request line or a header field is malformed, ambiguous or too large."""


class MalformedBody(RequestRejected):
    """The chunked coding of the body is broken."""


class BodyTooLarge(RequestRejected):
    status = 413


class BodyTimeout(RequestRejected):
    status = 408


class ClientDisconnected(Exception):
    """The client closed its connection before the reply was complete."""


class ResponseOrderError(Exception):
    """The handler used an exchange in an order that no reply has."""


class BufferBudgetExceeded(RequestRejected):
    """All requests together hold as many bytes as they may."""

    status = 503

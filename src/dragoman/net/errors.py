"""Errors of connections, clients and upstreams, each named for what a caller may do about it."""

from typing import Literal

Wait = Literal["connect", "first", "idle"]


class Lost(Exception):
    """The connection could not be made, or broke before the answer's declared end.

    The message is safe to show: it names host and port, never a path, query, header or password.
    """

    stale = False  # it had served before and ended without a byte of answer: likely it was only old

    def __init__(self, message: str, *, sent: bool, received: bool) -> None:
        super().__init__(message)
        self.sent = sent
        self.received = received

    def copy(self) -> "Lost":
        """An equal one to raise: a traceback would tie whoever keeps this one to all that its frames hold."""
        twin = type(self)(str(self), sent=self.sent, received=self.received)
        twin.stale = self.stale
        return twin


class Corrupt(Lost):
    """The peer answered with something that is not the HTTP or the encoding it claims."""


class TimedOut(Exception):
    """The peer was silent for too long, in the named phase."""

    def __init__(self, phase: Wait, message: str) -> None:
        super().__init__(message)
        self.phase = phase


class TooLarge(Exception):
    """A body, as sent or once decompressed, exceeds the limit given."""


class BadEncoding(Exception):
    """A body is not what its content-encoding says, or the encoding is unknown."""


class Refused(Exception):
    """A request that cannot be served; `message` is safe to show to the client."""

    status = 400

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status

    def copy(self) -> "Refused":
        """An equal one to raise: a traceback would tie whoever keeps this one to all that its frames hold."""
        return type(self)(self.message, self.status)


class HeadRefused(Refused):
    """The request line or a header field is malformed, ambiguous or too large."""


class BodyMalformed(Refused):
    """The chunked coding of the body is broken."""


class BodyTooLarge(Refused):
    status = 413


class BodyTimeout(Refused):
    status = 408


class ClientGone(Exception):
    """The client closed its connection before the reply was complete."""


class OutOfOrder(Exception):
    """The handler used an exchange in an order that no reply has."""


class BudgetSpent(Refused):
    """All requests together hold as many bytes as they may."""

    status = 503

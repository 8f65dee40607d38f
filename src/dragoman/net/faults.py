"""What can go wrong between us and a peer, named by what may be done about it."""

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

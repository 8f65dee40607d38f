"""Why the transport turns a request down, each with the status that says so."""


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

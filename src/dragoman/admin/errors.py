"""The error that every operation of this package raises when it cannot do what it was asked to do."""


class AdminError(Exception):
    """The operation failed; the message names the cause and the next step."""

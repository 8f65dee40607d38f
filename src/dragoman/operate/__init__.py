"""The operations of an administrator, as functions that need no terminal and no socket.

Every function returns typed values; progress and prompts go through callbacks and iterators. The commands in `cli/`
turn these values into text. The message of an error names what is wrong, why, and what to do next.
"""


class AdminError(Exception):
    """The operation failed."""


class InvalidArgument(AdminError):
    """An argument cannot be used as it is. `field` is its name, where it is one of several."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NotFound(AdminError):
    """What the argument names does not exist."""


class Conflict(AdminError):
    """What should be created already exists."""


class VersionMismatch(AdminError):
    """What should be changed was changed since the caller has read it."""

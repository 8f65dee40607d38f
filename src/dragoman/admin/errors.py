"""Errors of this package: each message names what is wrong, why, and what to do next."""


class AdminError(Exception):
    """The operation failed."""


class InvalidArgument(AdminError):
    """An argument cannot be used as it is."""


class NotFound(AdminError):
    """What the argument names does not exist."""


class Conflict(AdminError):
    """What should be created exists already."""

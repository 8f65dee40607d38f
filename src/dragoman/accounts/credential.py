"""Credentials of upstream accounts: what they have in common, where they are stored, and why none may be usable."""

import re
from pathlib import Path
from typing import Protocol, TypeVar

from dragoman.hub.failure import Kind

NEVER_EXPIRES = float("inf")

_PRINTABLE = re.compile(r"[!-~]*")


class Credential(Protocol):
    """A credential of any vendor. Its repr never contains a token."""

    @property
    def access_token(self) -> str: ...
    @property
    def refresh_token(self) -> str: ...  # empty: it cannot be renewed
    @property
    def expires_at(self) -> float: ...  # seconds since the epoch, without a safety margin
    @property
    def secrets(self) -> tuple[str, ...]: ...  # all that must be redacted in messages
    @property
    def account(self) -> str: ...  # empty: any account that signs in is accepted


C = TypeVar("C", bound=Credential)


class Source(Protocol[C]):
    """Where a credential is stored. Files are read again each time, since other programs write them; methods may block.

    `write` returns False if another program has renewed the stored credential since it was read.
    """

    @property
    def location(self) -> str: ...
    @property
    def lock(self) -> Path | None: ...
    def read(self) -> C: ...
    def write(self, consumed: C, fresh: C) -> bool: ...


class FileSource:
    """A source that is one file, with a lock file beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def location(self) -> str:
        return str(self.path)

    @property
    def lock(self) -> Path:
        return self.path


class CredentialError(Exception):
    """There is no usable credential. The message names files and remedies, never a secret."""

    def __init__(self, message: str, kind: Kind = Kind.CREDENTIAL) -> None:
        super().__init__(message)
        self.kind = kind


class AccountChanged(CredentialError):
    """Another account has signed in at the source: the old token is not used any more, even if it is still valid."""


class TokenRejected(Exception):
    """The issuer rejected this refresh token with `code`.

    If `is_permanent`, it is not tried again until another token is stored. `kind` is the kind of failure to report.
    """

    def __init__(self, code: str, *, is_permanent: bool = False, kind: Kind = Kind.CREDENTIAL) -> None:
        super().__init__(code)
        self.code = code
        self.is_permanent = is_permanent
        self.kind = kind


def is_sendable(token: str) -> bool:
    """Return whether a token may stand in a header."""
    return _PRINTABLE.fullmatch(token) is not None

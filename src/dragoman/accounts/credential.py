"""What a credential is to whoever keeps it: tokens, their life, whose they are; and why there may be none."""

import re
from pathlib import Path
from typing import Protocol, TypeVar

from dragoman.hub.failure import Kind

NEVER_EXPIRES = float("inf")

_PRINTABLE = re.compile(r"[!-~]*")


class Credential(Protocol):
    """A value that never prints its tokens."""

    @property
    def access_token(self) -> str: ...
    @property
    def refresh_token(self) -> str: ...  # empty: it cannot be renewed
    @property
    def expires_at(self) -> float: ...  # seconds since the epoch: the true moment, no margin taken off
    @property
    def account(self) -> str: ...  # empty: whoever has signed in last


C = TypeVar("C", bound=Credential)


class Source(Protocol[C]):
    """Where a credential lies. Files are read anew each time: other programs write them. All of it may wait for a disk.

    `write` is false where the place no longer holds what was consumed: somebody else has renewed it, and is newer.
    """

    @property
    def location(self) -> str: ...
    @property
    def lock(self) -> Path | None: ...
    def read(self) -> C: ...
    def write(self, consumed: C, fresh: C) -> bool: ...


class FileSource:
    """A source that is one file, and locked beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def location(self) -> str:
        return str(self.path)

    @property
    def lock(self) -> Path:
        return self.path


class CredentialError(Exception):
    """No credential can be had. The message names files and remedies, never a secret."""

    def __init__(self, message: str, kind: Kind = Kind.CREDENTIAL) -> None:
        super().__init__(message)
        self.kind = kind


class AccountChanged(CredentialError):
    """Somebody else has signed in where the credential lies: not even a token that still lives is used any more."""


class TokenRejected(Exception):
    """The issuer does not take this refresh token; `code` is its own word for why.

    `for_good`: it never will, so it is not asked again until another token is stored. `kind`: what that means.
    """

    def __init__(self, code: str, *, is_permanent: bool = False, kind: Kind = Kind.CREDENTIAL) -> None:
        super().__init__(code)
        self.code = code
        self.is_permanent = is_permanent
        self.kind = kind


def is_sendable(token: str) -> bool:
    """Whether a token could stand in a header at all."""
    return _PRINTABLE.fullmatch(token) is not None

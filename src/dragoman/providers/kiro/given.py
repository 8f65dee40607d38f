"""Credentials that are strings: an API key, and a refresh token whose successors are kept in a file of our own."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from dragoman.accounts.credential import NEVER
from dragoman.accounts.credential_files import encode_table, replace_file
from dragoman.providers.kiro.credential import Credential, Method, checked
from dragoman.providers.kiro.json_file import JsonFile, renewed


class ApiKey:
    """Used as it is; refused, it cannot be renewed."""

    lock = None

    def __init__(self, read: Callable[[], str], where: str) -> None:
        self._read = read
        self.where = where

    def read(self) -> Credential:
        return checked(Credential(Method.API_KEY, access_token=self._read(), expires_at=NEVER), self.where)

    def write(self, consumed: Credential, fresh: Credential) -> bool:
        return False


class RefreshToken:
    """Refresh tokens rotate, a variable does not: what became of this one is kept beside our store, under its hash."""

    def __init__(self, read: Callable[[], str], where: str, directory: Path | None) -> None:
        self._read = read
        self._directory = directory
        self.where = where

    @property
    def lock(self) -> Path | None:
        if self._directory is None:
            return None
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return None
        return self._kept()

    def read(self) -> Credential:
        kept = self._kept()
        if kept is not None and kept.is_file():
            return JsonFile(kept).read()
        return checked(Credential(Method.DESKTOP, refresh_token=self._read()), self.where)

    def write(self, consumed: Credential, fresh: Credential) -> bool:
        kept = self._kept()
        if kept is None:
            return True
        if kept.is_file():
            return JsonFile(kept).write(consumed, fresh)
        return replace_file(kept, encode_table({"authMethod": Method.DESKTOP.value, **renewed(fresh)}), None)

    def _kept(self) -> Path | None:
        if self._directory is None:
            return None
        return self._directory / f"kiro-{sha256(self._read().encode()).hexdigest()[:16]}.json"

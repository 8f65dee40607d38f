"""Credentials of upstream accounts in the store: put them there, get them out, list them, and seal them with a new key.

They can only be read and changed here, on the store itself: no path of the gateway does it.
"""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from dragoman.config.settings import Config
from dragoman.operate import AdminError, Conflict
from dragoman.store import open_store
from dragoman.store.audit import make_audit_row
from dragoman.store.sealed_credentials import SealedCredential
from dragoman.store.sealing import make_secret_keys
from dragoman.store.store import find_secret_file
from dragoman.upstreams import ACCOUNT_FILES
from dragoman.upstreams.credentials.credential import (
    CredentialError,
    Table,
    encode_table,
    read_bytes,
    replace_file,
)
from dragoman.upstreams.credentials.stored import (
    StoredCredentials,
    explain_seal,
    list_stored_names,
    make_stored_credentials,
    open_row,
    seal_table,
)

RESEALED, UNCHANGED = "resealed", "unchanged"
NOT_KNOWN = "{file} is no credential file as a vendor's tool, `gcloud` or `dragoman login` writes it"


class StoredAccount(Struct, frozen=True):
    """A credential in the store, without its content."""

    name: str
    kind: str
    version: int
    changed: str
    providers: tuple[str, ...]  # that use it
    problem: str = ""  # why it cannot be opened


class PushedAccount(Struct, frozen=True):
    """What is in the store now. `key_file` has the key, if it is not in the environment."""

    account: StoredAccount
    key_file: Path | None


class Resealed(Struct, frozen=True):
    """What became of one credential: resealed, unchanged, or why it could not be opened."""

    name: str
    result: str

    @property
    def has_failed(self) -> bool:
        return self.result not in (RESEALED, UNCHANGED)


class SharedAccounts(Struct, frozen=True):
    """The credentials in the configured store."""

    config: Config
    environ: Mapping[str, str]

    async def push(self, name: str, file: Path) -> PushedAccount:
        """Put the credential in a file into the store, in place of the one with this name.

        Without a key in the environment, SQLite gets one in a file beside it.
        """
        key_file = find_secret_file(self.config.store.url)
        with _explain_failures("Nothing is stored"):
            kind, table = read_account_file(file)
            async with self._open() as stored:
                with explain_seal(name):
                    keys = make_secret_keys(self.environ, key_file)
                sealer = stored.make_sealer(name)
                new = SealedCredential(name, kind, 0, b"", int(time.time()))
                audit = make_audit_row("accounts.push", name, {"kind": kind})
                row = await stored.store.put_sealed(
                    new, lambda version: seal_table(sealer, name, version, table), audit
                )
        return PushedAccount(self._describe(row), key_file if keys.place == str(key_file) else None)

    async def pull(self, name: str, file: Path, *, replaces: bool) -> StoredAccount:
        """Write a credential into a file that only its owner can read, in the vendor's form.

        An existing file is replaced only if the caller says so.
        """
        with _explain_failures("Nothing is written"):
            async with self._open() as stored:
                row = await stored.read(name)
                content = encode_table(open_row(row, row.kind, stored.make_sealer(name)))
                before = read_bytes(file)
                if before is not None and not replaces:
                    raise Conflict(f"{file} already exists. Choose another file, or replace it with --force.")
                audit = make_audit_row("accounts.pull", name, {"kind": row.kind, "version": row.version})
                await stored.store.add_audit(audit)
                if not replace_file(file, content, before):
                    raise Conflict(f"{file} was just written by another program, and was left as it is.")
        return self._describe(row)

    async def reseal(self) -> list[Resealed]:
        """Seal everything with the first key. What cannot be opened stays as it is."""
        async with self._open() as stored:
            return [await _reseal(stored, row.name) for row in await stored.store.list_sealed()]

    async def list(self) -> list[StoredAccount]:
        """Return all credentials in the store, and whether they can be opened."""
        async with self._open() as stored:
            rows = await stored.store.list_sealed()
            return [self._describe(row, _find_problem(row, row.kind, stored)) for row in rows]

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[StoredCredentials]:
        async with await open_store(self.config.store.url) as store:
            yield make_stored_credentials(store, self.config.store.url, self.environ)

    def _describe(self, row: SealedCredential, problem: str = "") -> StoredAccount:
        changed = datetime.fromtimestamp(row.changed_at, UTC).isoformat()
        sections = self.config.providers.values()
        users = tuple(section.name for section in sections if row.name in list_stored_names(section))
        return StoredAccount(row.name, row.kind, row.version, changed, users, problem)


async def find_account_problems(config: Config, stored: StoredCredentials) -> list[str]:
    """Return why providers cannot use the credentials in the store that they name."""
    problems = []
    for section in config.providers.values():
        for name in list_stored_names(section):
            try:
                problem = _find_problem(await stored.read(name), section.kind, stored)
            except CredentialError as error:
                problem = str(error)
            if problem:
                problems.append(f"provider {section.name}: {problem}")
    return problems


def read_account_file(file: Path) -> tuple[str, Table]:
    """Return the kind of a credential file and what the store has of it. Raises CredentialError."""
    if not file.is_file():
        raise CredentialError(f"{file} does not exist")
    for kind, read in ACCOUNT_FILES.items():
        table = read(file)
        if table is not None:
            return kind, table
    raise CredentialError(NOT_KNOWN.format(file=file))


@contextmanager
def _explain_failures(consequence: str) -> Iterator[None]:
    try:
        yield
    except CredentialError as error:
        raise AdminError(f"{consequence}: {error}.") from error


def _find_problem(row: SealedCredential, kind: str, stored: StoredCredentials) -> str:
    try:
        open_row(row, kind, stored.make_sealer(row.name))
    except CredentialError as error:
        return str(error)
    return ""


async def _reseal(stored: StoredCredentials, name: str) -> Resealed:
    def change(row: SealedCredential) -> bytes | None:
        sealer = stored.make_sealer(name)
        table = open_row(row, row.kind, sealer)
        return None if sealer.has_first_key(row.sealed) else seal_table(sealer, name, row.version, table)

    try:
        is_changed = await stored.store.reseal(name, change, make_audit_row("accounts.reseal", name))
    except CredentialError as error:
        return Resealed(name, str(error))
    return Resealed(name, RESEALED if is_changed else UNCHANGED)

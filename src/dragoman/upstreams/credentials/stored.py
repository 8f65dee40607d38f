"""Credentials in the store, sealed and shared by all gateways: `credentials = "store:NAME"`.

A renewal holds the credential, reads it again, asks the issuer and stores the answer as the next version, so that a
refresh token that works once is used once. Between the issuer's answer and the end of that write, a killed process
loses the login; nothing else happens there.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import msgspec

from dragoman.config.providers import find_stored_name, list_credentials
from dragoman.config.secret import SecretSource
from dragoman.config.settings import Config, ProviderConfig
from dragoman.net.tasks import spawn
from dragoman.store import Store, make_store
from dragoman.store.database import HeldElsewhere, StoreError
from dragoman.store.sealed_credentials import HeldCredential, Renewed, SealedCredential
from dragoman.store.sealing import BadSecretKey, CannotOpen, Sealer, SealError, SecretKeys, find_secret_keys
from dragoman.store.store import find_secret_file
from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.hub.failure import Kind, describe_cause
from dragoman.upstreams.credentials.credential import (
    C,
    CredentialError,
    CredentialForm,
    CredentialSource,
    Table,
    make_missing_source,
)

log = logging.getLogger(__name__)

PURPOSE = "sealed credentials"
SAVE_AGAIN_S = 1.0

FindKeys = Callable[[], SecretKeys]  # raises SealError, BadSecretKey or OSError


def push_command(name: str) -> str:
    """Return the command that puts a credential into the store."""
    return f"dragoman accounts push {name} FILE"


def bind(name: str, version: int) -> bytes:
    """Return what a sealed credential is bound to."""
    return f"{name}\0{version}".encode()


class StoredCredentials:
    """The credentials in the store, and the keys that open them."""

    def __init__(self, store: Store, find_keys: FindKeys) -> None:
        self.store = store
        self._find_keys = find_keys
        self._busy = 0  # renewals that are not stored yet
        self._is_free = asyncio.Event()

    async def read(self, name: str) -> SealedCredential:
        """Raises CredentialError if there is no such credential."""
        with explain_store(name):
            return require(await self.store.find_sealed(name), name)

    def make_sealer(self, name: str) -> Sealer:
        """Return what opens and seals a credential now. Raises CredentialError."""
        with explain_seal(name):
            return Sealer(self._find_keys(), PURPOSE)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[HeldCredential]:
        """Keep all other processes from renewing a credential."""
        with self._being_busy(), explain_store(name):
            async with self.store.hold_sealed(name) as held:
                yield held

    async def save_later(self, renewed: Renewed) -> None:
        """Store what was renewed as soon as the database can be used again."""
        with self._being_busy():
            while True:
                await asyncio.sleep(SAVE_AGAIN_S)
                try:
                    is_stored = await self.store.renew_sealed(renewed)
                except StoreError as error:
                    log.debug("store:%s is not stored yet: %s", renewed.name, error)
                    continue
                result = "is stored now" if is_stored else "was replaced meanwhile, and stays so"
                log.info("store:%s %s", renewed.name, result)
                return

    async def finish(self, timeout_s: float) -> None:
        """Wait until all renewals are stored: cut off after its issuer has answered, one would cost the login."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._busy:
                    self._is_free.clear()
                    await self._is_free.wait()
        except TimeoutError:
            log.warning("a credential is still being renewed or stored after %g s", timeout_s)

    @contextmanager
    def _being_busy(self) -> Iterator[None]:
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._is_free.set()


def make_stored_credentials(store: Store, url: str, environ: Mapping[str, str]) -> StoredCredentials:
    """Return the credentials in a store, opened with the keys of the environment or of the file beside the store."""
    return StoredCredentials(store, partial(find_secret_keys, environ, find_secret_file(url)))


def list_stored_names(config: ProviderConfig) -> tuple[str, ...]:
    """Return the names of the credentials in the store that a section uses."""
    return tuple(name for name in map(find_stored_name, list_credentials(config)) if name is not None)


@asynccontextmanager
async def open_stored_credentials(
    config: Config, environ: Mapping[str, str]
) -> AsyncIterator[StoredCredentials | None]:
    """Yield the credentials in the configured store, opened with the first use; None if no provider names one."""
    if not any(map(list_stored_names, config.providers.values())):
        yield None
        return
    async with make_store(config.store.url) as store:
        yield make_stored_credentials(store, config.store.url, environ)


def find_stored_source(
    credential: SecretSource | Path, stored: StoredCredentials | None, form: CredentialForm[C]
) -> CredentialSource[C] | None:
    """Return the source of a setting that names a credential in the store; None for any other setting."""
    name = find_stored_name(credential)
    if name is None:
        return None
    return make_missing_source(f"store:{name} needs a store") if stored is None else StoredSource(stored, name, form)


class StoredSource(CredentialSource[C]):
    """One credential in the store, in a vendor's form."""

    def __init__(self, stored: StoredCredentials, name: str, form: CredentialForm[C]) -> None:
        super().__init__(f"store:{name}")
        self.remedy = f"sign in again, then `{push_command(name)}`"
        self.stored = stored
        self.name = name
        self.form = form

    async def load(self) -> C:
        row = await self.stored.read(self.name)
        return self.form.parse(open_row(row, self.form.kind, self.stored.make_sealer(self.name)), self.location)

    async def save(self, consumed: C, fresh: C) -> bool:
        return True  # only a credential that is not written is renewed without being held

    def hold(self, stored: C) -> AbstractAsyncContextManager[CredentialSource[C]]:
        return self._hold() if self.form.is_written(stored) else nullcontext(self)

    @asynccontextmanager
    async def _hold(self) -> AsyncIterator[CredentialSource[C]]:
        async with self.stored.hold(self.name) as held:
            yield _HeldSource(self, held)


class _HeldSource(StoredSource[C]):
    """The same credential while no other process renews it."""

    def __init__(self, source: StoredSource[C], held: HeldCredential) -> None:
        super().__init__(source.stored, source.name, source.form)
        self._held = held
        self._sealer = source.stored.make_sealer(source.name)  # before the issuer is asked: afterwards it must not fail
        self._version = 0
        self._table: Table = {}

    async def load(self) -> C:
        row = require(await self._held.read(), self.name)
        self._version, self._table = row.version, open_row(row, self.form.kind, self._sealer)
        return self.form.parse(self._table, self.location)

    async def save(self, consumed: C, fresh: C) -> bool:
        table = self._table | self.form.renewed_fields(self._table, fresh)
        sealed = seal_table(self._sealer, self.name, self._version + 1, table)
        renewed = Renewed(self.name, self._version, sealed, int(time.time()))
        try:
            return await self._held.renew(renewed)
        except StoreError as error:
            log.warning("%s was renewed and cannot be stored yet, it is tried again: %s", self.location, error)
            spawn(self.stored.save_later(renewed), name=f"saving of {self.location}")
            return True


def require(row: SealedCredential | None, name: str) -> SealedCredential:
    if row is None:
        raise CredentialError(f"store:{name} is not in the store. Put it there: {push_command(name)}")
    return row


def open_row(row: SealedCredential, kind: str, sealer: Sealer) -> Table:
    """Return the object that a vendor's form reads. Raises CredentialError."""
    if row.kind != kind:
        raise CredentialError(f"store:{row.name} is a credential of kind {row.kind!r}, not {kind!r}")
    with explain_seal(row.name):
        return open_table(sealer, row)


def open_table(sealer: Sealer, row: SealedCredential) -> Table:
    """Raises SealError."""
    table = parse_or(sealer.open(row.sealed, bind(row.name, row.version)), dict[str, object], None)
    if table is None:
        raise CannotOpen("holds no JSON object")
    return table


def seal_table(sealer: Sealer, name: str, version: int, table: Table) -> bytes:
    return sealer.seal(msgspec.json.encode(table), bind(name, version))


@contextmanager
def explain_seal(name: str) -> Iterator[None]:
    """Raise CredentialError for a credential that cannot be opened: it names the credential and what to do."""
    try:
        yield
    except SealError as error:
        instead = f"; or store it again: {push_command(name)}" if isinstance(error, CannotOpen) else ""
        raise CredentialError(f"store:{name} {error}{instead}") from error
    except BadSecretKey as wrong:
        raise CredentialError(f"store:{name} cannot be opened: {wrong}") from wrong
    except OSError as error:
        raise CredentialError(f"store:{name} cannot be opened: {error.filename}: {describe_cause(error)}") from error


@contextmanager
def explain_store(name: str) -> Iterator[None]:
    """Raise CredentialError, of a kind that may be tried again, if the store cannot be used."""
    try:
        yield
    except HeldElsewhere as held:
        raise CredentialError(f"store:{name} is being renewed by another process: {held}", Kind.TIMEOUT) from held
    except StoreError as error:
        raise CredentialError(f"store:{name} cannot be read: {error}", Kind.LOST) from error

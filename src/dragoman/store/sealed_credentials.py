"""Credentials of upstream accounts that all gateways on the store share. What is in them is sealed.

A version is given once: whoever renews a credential names the one that it has renewed, and only the first is stored.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.structs import fields

from dragoman.store.audit import AuditRow, append_audit_row
from dragoman.store.database import HoldingSession, Session, StorePart, find, reads, writes


class SealedCredential(Struct, frozen=True):
    """A credential; the time is in Unix seconds."""

    name: str
    kind: str  # of the providers that it is for
    version: int
    sealed: bytes  # bound to the name and the version
    changed_at: int


COLUMNS = ", ".join(field.name for field in fields(SealedCredential))
SELECT = f"SELECT {COLUMNS} FROM dragoman.sealed_credentials"  # noqa: S608 - names of our own fields
SELECT_ONE = f"{SELECT} WHERE name = $1"
HOLD_ONE = f"{SELECT_ONE} FOR UPDATE"
PUT = f"""
    INSERT INTO dragoman.sealed_credentials ({COLUMNS}) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, version = excluded.version, sealed = excluded.sealed,
        changed_at = excluded.changed_at
"""  # noqa: S608 - names of our own fields
RENEW = """
    UPDATE dragoman.sealed_credentials SET version = version + 1, sealed = $3, changed_at = $4
    WHERE name = $1 AND version = $2
"""
RESEAL = "UPDATE dragoman.sealed_credentials SET sealed = $3 WHERE name = $1 AND version = $2"

Seal = Callable[[int], bytes]  # of a version


class Renewed(Struct, frozen=True):
    """What one version of a credential is replaced by."""

    name: str
    version: int  # that was renewed
    sealed: bytes
    now: int


class HeldCredential:
    """A credential that this process alone may renew now."""

    def __init__(self, session: HoldingSession, name: str) -> None:
        self._session = session
        self._name = name

    async def read(self) -> SealedCredential | None:
        return await find(self._session, SealedCredential, HOLD_ONE, self._name)

    async def renew(self, renewed: Renewed) -> bool:
        """Store what was renewed, for good; return False if the credential has another version now."""
        is_stored = await _renew(self._session, renewed)
        await self._session.commit()
        return is_stored


class SealedCredentials(StorePart):
    @reads
    async def list_sealed(self, session: Session) -> tuple[SealedCredential, ...]:
        """Return all credentials, by name."""
        return tuple(await session.fetch(SealedCredential, f"{SELECT} ORDER BY name"))

    @reads
    async def find_sealed(self, session: Session, name: str) -> SealedCredential | None:
        return await find(session, SealedCredential, SELECT_ONE, name)

    @writes
    async def put_sealed(
        self, session: Session, row: SealedCredential, seal: Seal, audit: AuditRow
    ) -> SealedCredential:
        """Store a credential in the place of the one with its name, if there is one, as the next version."""
        await session.lock(f"credential {row.name}")
        old = await find(session, SealedCredential, HOLD_ONE, row.name)
        version = 1 if old is None else old.version + 1
        new = SealedCredential(row.name, row.kind, version, seal(version), row.changed_at)
        await session.execute(PUT, new.name, new.kind, new.version, new.sealed, new.changed_at)
        await append_audit_row(session, audit)
        return new

    @writes
    async def reseal(
        self, session: Session, name: str, change: Callable[[SealedCredential], bytes | None], audit: AuditRow
    ) -> bool:
        """Seal the same version of a credential otherwise; return False if `change` returns nothing else."""
        row = await find(session, SealedCredential, HOLD_ONE, name)
        sealed = None if row is None else change(row)
        if row is None or sealed is None:
            return False
        await session.execute(RESEAL, name, row.version, sealed)
        await append_audit_row(session, audit)
        return True

    @writes
    async def renew_sealed(self, session: Session, renewed: Renewed) -> bool:
        """Store what was renewed, perhaps once more; return False if the credential has another version now."""
        return await _renew(session, renewed)

    @asynccontextmanager
    async def hold_sealed(self, name: str) -> AsyncIterator[HeldCredential]:
        """Keep other processes from renewing a credential. Raises HeldElsewhere if one takes too long over it."""
        async with self.database.hold(f"credential-{name}") as session:
            yield HeldCredential(session, name)


async def _renew(session: Session, renewed: Renewed) -> bool:
    if await session.execute(RENEW, renewed.name, renewed.version, renewed.sealed, renewed.now):
        return True
    row = await find(session, SealedCredential, SELECT_ONE, renewed.name)
    return row is not None and row.sealed == renewed.sealed  # the answer to the first try was lost

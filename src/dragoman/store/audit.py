"""The audit log: who changed something or read a request's content. Each row has the hash of the one before."""

import hashlib

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from dragoman.store.database import Session, StorePart, find, queries, writes

AUDIT_DAYS = 400  # rows are kept that long
SELECT_ROWS = """
    SELECT time_ms, actor, action, subject, address, detail, number, previous FROM dragoman.audit
    WHERE number < $1 ORDER BY number DESC LIMIT $2
"""


class AuditRow(Struct, frozen=True):
    """Who changed something or read a request's content, without a secret or content.

    The store gives the number, which grows, and `previous`, the hash of the row before.
    """

    time_ms: int  # since the epoch
    actor: str  # the id of the key
    action: str
    subject: str
    address: str  # of the peer
    detail: str = ""  # JSON: what changed
    number: int = 0
    previous: bytes = b""


def hash_audit_row(row: AuditRow | None) -> bytes:
    """Return what the next row holds of this one, so that a row cannot be changed or removed unnoticed."""
    return b"" if row is None else hashlib.sha256(msgspec.msgpack.encode(astuple(row))).digest()


class AuditLog(StorePart):
    @writes
    async def add_audit(self, session: Session, row: AuditRow) -> None:
        """Add a row to the audit log, which gets its number and the hash of the row before."""
        await session.lock("audit")
        last = await find(session, AuditRow, SELECT_ROWS, 2**62, 1)
        await session.execute(
            "INSERT INTO dragoman.audit (time_ms, actor, action, subject, address, detail, previous)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7)",
            *(row.time_ms, row.actor, row.action, row.subject, row.address, row.detail, hash_audit_row(last)),
        )

    @writes
    async def remove_audit(self, session: Session, before_ms: int) -> int:
        """Remove the rows of the audit log that are older than this time; return how many."""
        return await session.execute("DELETE FROM dragoman.audit WHERE time_ms < $1", before_ms)

    @queries
    async def list_audit_rows(self, session: Session, before: int, limit: int) -> tuple[AuditRow, ...]:
        """Return the newest audit rows whose number is smaller than `before`, newest first."""
        return tuple(await session.fetch(AuditRow, SELECT_ROWS, before, limit))

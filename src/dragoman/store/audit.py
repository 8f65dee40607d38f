"""The audit log: who changed something or read a request's content.

Each row has the hash of the one before, and that of the newest row is kept beside them.
"""

import hashlib
import time
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from dragoman.store.database import Session, StorePart, find, queries, writes

AUDIT_DAYS = 400  # rows are kept that long
LOCAL = "local"  # the actor of commands on the store itself
MAX_SUBJECT = 200
VERIFIED_AT_ONCE = 1000  # rows
SELECT = "SELECT time_ms, actor, action, subject, address, detail, number, previous FROM dragoman.audit"
SELECT_ROWS = f"{SELECT} WHERE number < $1 ORDER BY number DESC LIMIT $2"
SELECT_FITTING = f"""
    {SELECT} WHERE number < $1 AND time_ms >= $3 AND ($4::text = '' OR actor = $4)
        AND ($5::text = '' OR action = $5 OR substr(action, 1, length($6::text)) = $6)
        AND ($7::text = '' OR subject = $7)
    ORDER BY number DESC LIMIT $2
"""
SELECT_HEAD = "SELECT number, hash FROM dragoman.audit_head"
INSERT = """
    INSERT INTO dragoman.audit (time_ms, actor, action, subject, address, detail, previous)
    VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING number
"""
SELECT_AFTER = f"{SELECT} WHERE number > $1 ORDER BY number LIMIT $2"


class AuditRow(Struct, frozen=True):
    """Who changed something or read a request's content, without a secret or content.

    The store gives the number, which grows, and `previous`, the hash of the row before.
    """

    time_ms: int  # since the epoch
    actor: str  # the id of the key, or LOCAL
    action: str
    subject: str
    address: str  # of the peer
    detail: str = ""  # JSON: what changed
    number: int = 0
    previous: bytes = b""


class Actor(Struct, frozen=True):
    """Who changes something: the id of a key and the address of its peer, or a command on the store itself."""

    id: str
    address: str


COMMAND = Actor(LOCAL, "")


def make_audit_row(
    action: str, subject: str, detail: Mapping[str, object] | None = None, actor: Actor = COMMAND
) -> AuditRow:
    """Return a row about what is being done now."""
    text = "" if detail is None else msgspec.json.encode(detail).decode()
    return AuditRow(time.time_ns() // 1_000_000, actor.id, action, subject[:MAX_SUBJECT], actor.address, text)


class AuditFilter(Struct, frozen=True):
    """A filter of the audit log; an empty text matches any."""

    since_ms: int = 0
    actor: str = ""
    action: str = ""  # this one, or all that begin with it and a dot
    subject: str = ""


ALL_ROWS = AuditFilter()


class AuditHead(Struct, frozen=True):
    """The newest row, as it was written."""

    number: int
    hash: bytes


class AuditCheck(Struct, frozen=True):
    """The result of a check. `broken` is the number of the first row that was changed or removed."""

    rows: int
    broken: int | None = None


def hash_audit_row(row: AuditRow | None) -> bytes:
    """Return the hash that the next row has of this one, so that no row can be changed or removed unnoticed."""
    return b"" if row is None else hashlib.sha256(msgspec.msgpack.encode(astuple(row))).digest()


class AuditLog(StorePart):
    @writes
    async def add_audit(self, session: Session, row: AuditRow) -> None:
        """Add a row to the audit log, which gets its number and the hash of the row before."""
        await append_audit_row(session, row)

    @writes
    async def remove_audit(self, session: Session, before_ms: int) -> int:
        """Remove the rows of the audit log that are older than this time; return how many."""
        await session.execute("DELETE FROM dragoman.audit_head WHERE time_ms < $1", before_ms)
        return await session.execute("DELETE FROM dragoman.audit WHERE time_ms < $1", before_ms)

    @queries
    async def list_audit_rows(
        self, session: Session, before: int, limit: int, fits: AuditFilter = ALL_ROWS
    ) -> tuple[AuditRow, ...]:
        """Return the newest audit rows whose number is smaller than `before`, newest first."""
        values = fits.since_ms, fits.actor, fits.action, fits.action + ".", fits.subject
        return tuple(await session.fetch(AuditRow, SELECT_FITTING, before, limit, *values))

    async def verify_audit(self) -> AuditCheck:
        """Check that no row was changed or removed since it was written, but for the oldest, which expire."""
        head = await self._read_audit_head()
        last: AuditRow | None = None
        count = 0
        while rows := await self._list_audit_rows_after(-1 if last is None else last.number):
            for row in rows:
                if last is not None and row.previous != hash_audit_row(last):
                    is_next = row.number == last.number + 1
                    return AuditCheck(count, last.number if is_next else last.number + 1)
                if head is not None and row.number == head.number and hash_audit_row(row) != head.hash:
                    return AuditCheck(count, row.number)
                last, count = row, count + 1
        newest = 0 if last is None else last.number
        return AuditCheck(count, newest + 1 if head is not None and newest < head.number else None)

    @queries
    async def _read_audit_head(self, session: Session) -> AuditHead | None:
        return await find(session, AuditHead, SELECT_HEAD)

    @queries
    async def _list_audit_rows_after(self, session: Session, number: int) -> tuple[AuditRow, ...]:
        return tuple(await session.fetch(AuditRow, SELECT_AFTER, number, VERIFIED_AT_ONCE))


async def append_audit_row(session: Session, row: AuditRow | None) -> None:
    """Add a row as the last statement of the transaction that it describes; None adds nothing."""
    if row is None:
        return
    await session.lock("audit")
    last = await find(session, AuditRow, SELECT_ROWS, 2**62, 1)
    head = await find(session, AuditHead, SELECT_HEAD)
    # The hash is that of the row as it was written, so that this one does not hide a change of it. Older gateways
    # write rows, and no head.
    is_newest = head is not None and (last is None or last.number <= head.number)
    previous = head.hash if head is not None and is_newest else hash_audit_row(last)
    values = (row.time_ms, row.actor, row.action, row.subject, row.address, row.detail, previous)
    [number] = await session.fetch(int, INSERT, *values)
    digest = hash_audit_row(replace(row, number=number, previous=previous))
    await session.execute("DELETE FROM dragoman.audit_head")
    await session.execute("INSERT INTO dragoman.audit_head VALUES ($1, $2, $3)", number, row.time_ms, digest)

"""The SQL statements of the admin API and of the console's sessions on the PostgreSQL store."""

import re

import asyncpg
from msgspec.structs import astuple

from dragoman.store.audit_log import AUDIT_COLUMNS, AuditRow, hash_row
from dragoman.store.request_search import (
    MAX_EXAMINED,
    Dialect,
    RequestPage,
    RequestSearch,
    filter_all,
    make_page,
    narrow,
)
from dragoman.store.session_rows import SESSION_COLUMNS, SessionRow
from dragoman.store.usage_rows import COLUMNS, UsageRow

SPECIAL = re.compile(r"([\\%_])")


def _make_pattern(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text).replace("*", "%")


DIALECT = Dialect("LIKE", _make_pattern, lambda place: f"${place}")
ORDER = "ORDER BY id DESC"
SESSION_NAMES = ", ".join(SESSION_COLUMNS)
SESSION_TABLE = "dragoman.console_sessions"


async def add_audit(connection: asyncpg.Connection, row: AuditRow) -> None:
    async with connection.transaction():
        await connection.execute("LOCK TABLE dragoman.audit IN EXCLUSIVE MODE")  # each row has the hash of the last
        last = next(iter(await list_audit(connection, 2**62, 1)), None)
        await connection.execute(
            "INSERT INTO dragoman.audit (time_ms, actor, action, subject, address, detail, previous)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7)",
            *(row.time_ms, row.actor, row.action, row.subject, row.address, row.detail, hash_row(last)),
        )


async def remove_audit(connection: asyncpg.Connection, before_ms: int) -> int:
    status: str = await connection.execute("DELETE FROM dragoman.audit WHERE time_ms < $1", before_ms)
    return int(status.removeprefix("DELETE "))


async def list_audit(connection: asyncpg.Connection, before: int, limit: int) -> tuple[AuditRow, ...]:
    found = await connection.fetch(
        f"SELECT {AUDIT_COLUMNS} FROM dragoman.audit WHERE number < $1 ORDER BY number DESC LIMIT $2",  # noqa: S608
        *(before, limit),
    )
    return tuple(AuditRow(*columns) for columns in found)


async def search_requests(connection: asyncpg.Connection, search: RequestSearch) -> RequestPage:
    """Return a page of requests."""
    last = await _last_examined(connection, search) if search.conditions else None
    statement = filter_all(search, last, DIALECT)
    found = await connection.fetch(
        f"SELECT {', '.join(COLUMNS)} FROM dragoman.usage WHERE {statement.where}"  # noqa: S608 - names of our own fields
        f" {ORDER} LIMIT {search.limit:d}",
        *statement.values,
    )
    return make_page(search, tuple(UsageRow(*columns) for columns in found), last)


async def _last_examined(connection: asyncpg.Connection, search: RequestSearch) -> bytes | None:
    statement = narrow(search, DIALECT)
    found = await connection.fetchrow(
        f"SELECT id FROM dragoman.usage WHERE {statement.where} {ORDER} LIMIT 1 OFFSET {MAX_EXAMINED}",  # noqa: S608
        *statement.values,
    )
    return bytes(found[0]) if found else None


async def add_session(connection: asyncpg.Connection, row: SessionRow) -> None:
    await connection.execute(f"DELETE FROM {SESSION_TABLE} WHERE expires_at <= $1", row.created_at)  # noqa: S608
    places = ", ".join(f"${number + 1}" for number in range(len(SESSION_COLUMNS)))
    await connection.execute(f"INSERT INTO {SESSION_TABLE} ({SESSION_NAMES}) VALUES ({places})", *astuple(row))  # noqa: S608


async def find_session(connection: asyncpg.Connection, digest: bytes) -> SessionRow | None:
    row = await connection.fetchrow(f"SELECT {SESSION_NAMES} FROM {SESSION_TABLE} WHERE digest = $1", digest)  # noqa: S608
    return None if row is None else SessionRow(*row)


async def touch_session(connection: asyncpg.Connection, id: str, used_at: int) -> None:
    await connection.execute(f"UPDATE {SESSION_TABLE} SET used_at = $1 WHERE id = $2", used_at, id)  # noqa: S608


async def end_session(connection: asyncpg.Connection, id: str) -> bool:
    done = await connection.fetch(f"DELETE FROM {SESSION_TABLE} WHERE id = $1 RETURNING id", id)  # noqa: S608
    return bool(done)


async def list_sessions(connection: asyncpg.Connection) -> tuple[SessionRow, ...]:
    found = await connection.fetch(f"SELECT {SESSION_NAMES} FROM {SESSION_TABLE} ORDER BY created_at, id")  # noqa: S608
    return tuple(SessionRow(*row) for row in found)

"""The SQL statements on the console's sessions in the PostgreSQL store."""

import asyncpg
from msgspec.structs import astuple

from dragoman.store.session_rows import SESSION_COLUMNS, SessionRow

COLUMNS = ", ".join(SESSION_COLUMNS)
TABLE = "dragoman.console_sessions"


async def add_session(connection: asyncpg.Connection, row: SessionRow) -> None:
    await connection.execute(f"DELETE FROM {TABLE} WHERE expires_at <= $1", row.created_at)  # noqa: S608
    places = ", ".join(f"${number + 1}" for number in range(len(SESSION_COLUMNS)))
    await connection.execute(f"INSERT INTO {TABLE} ({COLUMNS}) VALUES ({places})", *astuple(row))  # noqa: S608


async def find_session(connection: asyncpg.Connection, digest: bytes) -> SessionRow | None:
    row = await connection.fetchrow(f"SELECT {COLUMNS} FROM {TABLE} WHERE digest = $1", digest)  # noqa: S608
    return None if row is None else SessionRow(*row)


async def touch_session(connection: asyncpg.Connection, id: str, used_at: int) -> None:
    await connection.execute(f"UPDATE {TABLE} SET used_at = $1 WHERE id = $2", used_at, id)  # noqa: S608


async def end_session(connection: asyncpg.Connection, id: str) -> bool:
    done = await connection.fetch(f"DELETE FROM {TABLE} WHERE id = $1 RETURNING id", id)  # noqa: S608
    return bool(done)


async def list_sessions(connection: asyncpg.Connection) -> tuple[SessionRow, ...]:
    found = await connection.fetch(f"SELECT {COLUMNS} FROM {TABLE} ORDER BY created_at, id")  # noqa: S608
    return tuple(SessionRow(*row) for row in found)

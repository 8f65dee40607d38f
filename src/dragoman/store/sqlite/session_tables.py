"""The SQL statements on the console's sessions in the SQLite store."""

import apsw
from msgspec.structs import astuple

from dragoman.store.session_rows import SESSION_COLUMNS, SessionRow

COLUMNS = ", ".join(SESSION_COLUMNS)


def add_session(connection: apsw.Connection, row: SessionRow) -> None:
    connection.execute("DELETE FROM console_sessions WHERE expires_at <= ?", (row.created_at,))
    places = ", ".join("?" * len(SESSION_COLUMNS))
    connection.execute(f"INSERT INTO console_sessions ({COLUMNS}) VALUES ({places})", astuple(row))  # noqa: S608


def find_session(connection: apsw.Connection, digest: bytes) -> SessionRow | None:
    found = connection.execute(f"SELECT {COLUMNS} FROM console_sessions WHERE digest = ?", (digest,))  # noqa: S608
    row = next(found, None)
    return None if row is None else SessionRow(*row)


def touch_session(connection: apsw.Connection, id: str, used_at: int) -> None:
    connection.execute("UPDATE console_sessions SET used_at = ? WHERE id = ?", (used_at, id))


def end_session(connection: apsw.Connection, id: str) -> bool:
    connection.execute("DELETE FROM console_sessions WHERE id = ?", (id,))
    return connection.changes() > 0


def list_sessions(connection: apsw.Connection) -> tuple[SessionRow, ...]:
    found = connection.execute(f"SELECT {COLUMNS} FROM console_sessions ORDER BY created_at, id")  # noqa: S608
    return tuple(SessionRow(*row) for row in found)

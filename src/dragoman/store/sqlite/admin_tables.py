"""The SQL statements of the admin API and of the console's sessions on the SQLite store."""

import apsw
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
from dragoman.store.sqlite.tables import make_rows
from dragoman.store.usage_rows import COLUMNS


def _make_pattern(text: str) -> str:
    return text.replace("[", "[[]").replace("?", "[?]")


DIALECT = Dialect("GLOB", _make_pattern, lambda place: f"?{place}")
ORDER = "ORDER BY id DESC"
SESSION_NAMES = ", ".join(SESSION_COLUMNS)


def add_audit(connection: apsw.Connection, row: AuditRow) -> None:
    """Add a row; the caller holds the write lock."""
    last = next(iter(list_audit(connection, 2**62, 1)), None)
    connection.execute(
        "INSERT INTO audit (time_ms, actor, action, subject, address, detail, previous) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (row.time_ms, row.actor, row.action, row.subject, row.address, row.detail, hash_row(last)),
    )


def remove_audit(connection: apsw.Connection, before_ms: int) -> int:
    connection.execute("DELETE FROM audit WHERE time_ms < ?", (before_ms,))
    return connection.changes()


def list_audit(connection: apsw.Connection, before: int, limit: int) -> tuple[AuditRow, ...]:
    found = connection.execute(
        f"SELECT {AUDIT_COLUMNS} FROM audit WHERE number < ? ORDER BY number DESC LIMIT ?",  # noqa: S608
        (before, limit),
    )
    return tuple(AuditRow(*columns) for columns in found)


def search_requests(connection: apsw.Connection, search: RequestSearch) -> RequestPage:
    """Return a page of requests."""
    last = _last_examined(connection, search) if search.conditions else None
    statement = filter_all(search, last, DIALECT)
    found = connection.execute(
        f"SELECT {', '.join(COLUMNS)} FROM usage WHERE {statement.where} {ORDER} LIMIT {search.limit:d}",  # noqa: S608
        statement.values,
    )
    return make_page(search, make_rows(found), last)


def _last_examined(connection: apsw.Connection, search: RequestSearch) -> bytes | None:
    statement = narrow(search, DIALECT)
    found = connection.execute(
        f"SELECT id FROM usage WHERE {statement.where} {ORDER} LIMIT 1 OFFSET {MAX_EXAMINED}",  # noqa: S608
        statement.values,
    ).fetchone()
    return bytes(found[0]) if found else None


def add_session(connection: apsw.Connection, row: SessionRow) -> None:
    connection.execute("DELETE FROM console_sessions WHERE expires_at <= ?", (row.created_at,))
    places = ", ".join("?" * len(SESSION_COLUMNS))
    connection.execute(f"INSERT INTO console_sessions ({SESSION_NAMES}) VALUES ({places})", astuple(row))  # noqa: S608


def find_session(connection: apsw.Connection, digest: bytes) -> SessionRow | None:
    found = connection.execute(f"SELECT {SESSION_NAMES} FROM console_sessions WHERE digest = ?", (digest,))  # noqa: S608
    row = next(found, None)
    return None if row is None else SessionRow(*row)


def touch_session(connection: apsw.Connection, id: str, used_at: int) -> None:
    connection.execute("UPDATE console_sessions SET used_at = ? WHERE id = ?", (used_at, id))


def end_session(connection: apsw.Connection, id: str) -> bool:
    connection.execute("DELETE FROM console_sessions WHERE id = ?", (id,))
    return connection.changes() > 0


def list_sessions(connection: apsw.Connection) -> tuple[SessionRow, ...]:
    found = connection.execute(f"SELECT {SESSION_NAMES} FROM console_sessions ORDER BY created_at, id")  # noqa: S608
    return tuple(SessionRow(*row) for row in found)

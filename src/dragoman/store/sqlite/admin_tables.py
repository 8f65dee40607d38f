"""The SQL statements of the admin API on the SQLite store."""

import apsw

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
from dragoman.store.sqlite.tables import make_rows
from dragoman.store.usage_rows import COLUMNS


def _make_pattern(text: str) -> str:
    return text.replace("[", "[[]").replace("?", "[?]")


DIALECT = Dialect("GLOB", _make_pattern, lambda place: f"?{place}")
ORDER = "ORDER BY id DESC"


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

"""The SQL statements on each table of the SQLite store."""

from collections.abc import Sequence
from itertools import chain

import apsw
import msgspec
from msgspec.structs import astuple, replace

from dragoman.store.sqlite.rollup_tables import add_rows, subtract_rows
from dragoman.store.store import (
    CUT_CALL_LIFE_S,
    KEY_COLUMNS,
    MAX_CUT_CALLS,
    MAX_CUT_CALLS_PER_TENANT,
    KeyId,
    KeyRow,
    LiveKey,
    NameTaken,
    Rotation,
)
from dragoman.store.usage_rows import COLUMNS, UsageRow, UsageSpan, first_id

INSERT = f"INSERT INTO usage ({', '.join(COLUMNS)}) VALUES "  # noqa: S608 - names of our own fields
PLACES = f"({','.join('?' * len(COLUMNS))})"
STREAM = COLUMNS.index("stream")
# Each statement acquires the interpreter's lock once, so that many rows share one. By number of rows, largest first.
INSERT_USAGE = {count: INSERT + ",".join([PLACES] * count) for count in (100, 10, 1)}
INSERT_IF_NEW = f"{INSERT}{PLACES} ON CONFLICT (id) DO NOTHING"
REMOVE_USAGE = f"""
    DELETE FROM usage WHERE id IN (SELECT id FROM usage WHERE id < ? ORDER BY id LIMIT ?)
    RETURNING {", ".join(COLUMNS)}
"""  # noqa: S608 - names of our own fields
SELECT_USAGE = f"""
    SELECT {", ".join(COLUMNS)}
    FROM usage WHERE id >= ?1 AND id < ?2 AND (?3 IS NULL OR key = ?3) ORDER BY id
"""  # noqa: S608 - names of our own fields
SELECT_KEYS = f"SELECT {', '.join(KEY_COLUMNS)} FROM client_keys"  # noqa: S608 - names of our own fields
INSERT_KEY = (
    f"INSERT INTO client_keys ({', '.join(KEY_COLUMNS)}, digest)"  # noqa: S608 - names of our own fields
    f" VALUES ({', '.join('?' * len(KEY_COLUMNS))}, ?)"
)
SELECT_LIVE_KEYS = """
    SELECT digest, id, role, scopes, expires_at FROM client_keys WHERE revoked_at IS NULL
    UNION ALL
    SELECT old_digest, id, role, scopes, min(old_secret_until, coalesce(expires_at, old_secret_until))
    FROM client_keys WHERE revoked_at IS NULL AND old_digest IS NOT NULL
"""
CHOSEN_KEY = f"""
    WHERE id = (SELECT id FROM client_keys WHERE revoked_at IS NULL AND (id = ?1 OR name = ?1)
                ORDER BY id = ?1 DESC LIMIT 1)
        AND (?2 IS NULL OR version = ?2)
    RETURNING {", ".join(KEY_COLUMNS)}
"""  # noqa: S608 - names of our own fields
REVOKE_KEY = f"UPDATE client_keys SET revoked_at = ?3, version = version + 1 {CHOSEN_KEY}"  # noqa: S608
ROTATE_KEY = f"""
    UPDATE client_keys SET old_digest = digest, digest = ?3, prefix = ?4, last4 = ?5, old_secret_until = ?6,
        version = version + 1 {CHOSEN_KEY}
"""  # noqa: S608 - names of our own fields


def add_key(connection: apsw.Connection, row: KeyRow, digest: bytes) -> None:
    try:
        connection.execute(INSERT_KEY, (*astuple(row), digest))
    except apsw.ConstraintError as error:
        raise NameTaken(row.name) from error


def add_first_key(connection: apsw.Connection, row: KeyRow, digest: bytes) -> bool:
    if connection.execute("SELECT 1 FROM client_keys LIMIT 1").fetchone():
        return False
    add_key(connection, row, digest)
    return True


def list_keys(connection: apsw.Connection) -> tuple[KeyRow, ...]:
    return tuple(KeyRow(*columns) for columns in connection.execute(f"{SELECT_KEYS} ORDER BY rowid"))


def live_keys(connection: apsw.Connection) -> tuple[LiveKey, ...]:
    return tuple(LiveKey(*columns) for columns in connection.execute(SELECT_LIVE_KEYS))


def find_key(connection: apsw.Connection, digest: bytes) -> KeyRow | None:
    found = connection.execute(f"{SELECT_KEYS} WHERE digest = ?", (digest,)).fetchone()
    return KeyRow(*found) if found else None


def revoke_key(connection: apsw.Connection, which: str, now: int, version: int | None) -> KeyRow | None:
    found = connection.execute(REVOKE_KEY, (which, version, now))
    return next(iter([KeyRow(*columns) for columns in found]), None)


def rotate_key(connection: apsw.Connection, which: str, rotation: Rotation, version: int | None) -> KeyRow | None:
    found = connection.execute(ROTATE_KEY, (which, version, *astuple(rotation)))
    return next(iter([KeyRow(*columns) for columns in found]), None)


def count_key_changes(connection: apsw.Connection) -> int:
    [[number]] = connection.execute("SELECT number FROM key_changes")
    return int(number)


def touch_keys(connection: apsw.Connection, used: frozenset[KeyId], now: int) -> None:
    connection.executemany("UPDATE client_keys SET last_used_at = ? WHERE id = ?", [(now, key) for key in used])


def remember_cut(connection: apsw.Connection, tenant: str, digest: bytes, lost: bytes, now: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO cut_calls (tenant, digest, lost, expires_at) VALUES (?, ?, ?, ?)",
        (tenant, digest, lost, now + CUT_CALL_LIFE_S),
    )
    connection.execute("DELETE FROM cut_calls WHERE expires_at <= ?", (now,))
    connection.execute(
        "DELETE FROM cut_calls WHERE tenant = ?1 AND rowid NOT IN"
        " (SELECT rowid FROM cut_calls WHERE tenant = ?1 ORDER BY expires_at DESC, rowid DESC LIMIT ?2)",
        (tenant, MAX_CUT_CALLS_PER_TENANT),
    )
    connection.execute(
        "DELETE FROM cut_calls WHERE rowid NOT IN"
        " (SELECT rowid FROM cut_calls ORDER BY expires_at DESC, rowid DESC LIMIT ?)",
        (MAX_CUT_CALLS,),
    )


def recall_cut(connection: apsw.Connection, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
    hex_digests = msgspec.json.encode([digest.hex() for digest in digests]).decode()
    row = connection.execute(
        "SELECT lost FROM cut_calls JOIN json_each(?) ON lower(hex(digest)) = value "
        "WHERE tenant = ? AND expires_at > ? ORDER BY key LIMIT 1",
        (hex_digests, tenant, now),
    ).fetchone()
    return bytes(row[0]) if row else None


def has_cuts(connection: apsw.Connection, now: int) -> bool:
    return connection.execute("SELECT 1 FROM cut_calls WHERE expires_at > ? LIMIT 1", (now,)).fetchone() is not None


def append_usage(connection: apsw.Connection, rows: Sequence[UsageRow]) -> None:
    start = 0
    added: list[UsageRow] = []
    for count, statement in INSERT_USAGE.items():
        while len(rows) - start >= count:
            added += _insert(connection, statement, rows[start : start + count])
            start += count
    add_rows(connection, added)


def _insert(connection: apsw.Connection, statement: str, rows: Sequence[UsageRow]) -> Sequence[UsageRow]:
    """Insert rows and return those that were not there before; only those are counted."""
    try:
        connection.execute(statement, list(chain.from_iterable(map(astuple, rows))))
        return rows
    except apsw.ConstraintError:  # rare: some are there already, since rows are appended again after an error
        return [row for row in rows if _insert_if_new(connection, row)]


def _insert_if_new(connection: apsw.Connection, row: UsageRow) -> bool:
    connection.execute(INSERT_IF_NEW, astuple(row))
    return connection.changes() > 0


def remove_usage(connection: apsw.Connection, before_ms: int, limit: int) -> int:
    removed = make_rows(connection.execute(REMOVE_USAGE, (first_id(before_ms), limit)))
    subtract_rows(connection, removed)
    return len(removed)


def make_rows(found: apsw.Cursor) -> tuple[UsageRow, ...]:
    return tuple(replace(UsageRow(*columns), stream=bool(columns[STREAM])) for columns in found)


def list_usage(connection: apsw.Connection, span: UsageSpan) -> tuple[UsageRow, ...]:
    found = connection.execute(SELECT_USAGE, (first_id(span.since_ms), first_id(span.until_ms), span.key))
    return make_rows(found)

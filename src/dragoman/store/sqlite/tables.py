"""The SQL statements on client keys, cut tool calls, the audit log and console sessions in SQLite."""

import apsw
import msgspec
from msgspec.structs import astuple

from dragoman.store.store import (
    AUDIT_COLUMNS,
    CUT_CALL_LIFE_S,
    KEY_COLUMNS,
    MAX_CUT_CALLS,
    MAX_CUT_CALLS_PER_TENANT,
    SESSION_COLUMNS,
    AuditRow,
    KeyId,
    KeyRow,
    LiveKey,
    NameTaken,
    Rotation,
    SessionRow,
    hash_audit_row,
)

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


def list_live_keys(connection: apsw.Connection) -> tuple[LiveKey, ...]:
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


SESSION_NAMES = ", ".join(SESSION_COLUMNS)


def add_audit(connection: apsw.Connection, row: AuditRow) -> None:
    """Add a row; the caller holds the write lock."""
    last = next(iter(list_audit(connection, 2**62, 1)), None)
    connection.execute(
        "INSERT INTO audit (time_ms, actor, action, subject, address, detail, previous) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (row.time_ms, row.actor, row.action, row.subject, row.address, row.detail, hash_audit_row(last)),
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

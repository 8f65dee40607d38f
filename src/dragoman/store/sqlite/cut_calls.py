"""The table of lost tool calls on SQLite."""

import apsw
import msgspec

from dragoman.store import cut_calls


def remember(connection: apsw.Connection, tenant: str, digest: bytes, lost: bytes, now: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO cut_calls (tenant, digest, lost, expires_at) VALUES (?, ?, ?, ?)",
        (tenant, digest, lost, now + cut_calls.LIFE_S),
    )
    connection.execute("DELETE FROM cut_calls WHERE expires_at <= ?", (now,))
    connection.execute(
        "DELETE FROM cut_calls WHERE tenant = ?1 AND rowid NOT IN"
        " (SELECT rowid FROM cut_calls WHERE tenant = ?1 ORDER BY expires_at DESC, rowid DESC LIMIT ?2)",
        (tenant, cut_calls.KEPT_PER_TENANT),
    )
    connection.execute(
        "DELETE FROM cut_calls WHERE rowid NOT IN"
        " (SELECT rowid FROM cut_calls ORDER BY expires_at DESC, rowid DESC LIMIT ?)",
        (cut_calls.KEPT,),
    )


def recall(connection: apsw.Connection, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
    wanted = msgspec.json.encode([digest.hex() for digest in digests]).decode()
    row = connection.execute(
        "SELECT lost FROM cut_calls JOIN json_each(?) ON lower(hex(digest)) = value "
        "WHERE tenant = ? AND expires_at > ? ORDER BY key LIMIT 1",
        (wanted, tenant, now),
    ).fetchone()
    return bytes(row[0]) if row else None


def has_any(connection: apsw.Connection, now: int) -> bool:
    return connection.execute("SELECT 1 FROM cut_calls WHERE expires_at > ? LIMIT 1", (now,)).fetchone() is not None

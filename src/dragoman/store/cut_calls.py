"""The table of lost tool calls: a conversation's digest comes in, what its last reply lost goes out, once."""

import apsw
import msgspec

KEPT = 1000  # of all conversations; the oldest go first
LIFE_S = 3600


def remember(connection: apsw.Connection, digest: bytes, lost: bytes, now: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO cut_calls (digest, lost, expires_at) VALUES (?, ?, ?)", (digest, lost, now + LIFE_S)
    )
    connection.execute("DELETE FROM cut_calls WHERE expires_at <= ?", (now,))
    connection.execute(
        "DELETE FROM cut_calls WHERE digest NOT IN (SELECT digest FROM cut_calls ORDER BY expires_at DESC LIMIT ?)",
        (KEPT,),
    )


def recall(connection: apsw.Connection, digests: tuple[bytes, ...], now: int) -> bytes | None:
    """What the newest of these conversations lost; it stays until it expires, for a client may ask again."""
    wanted = msgspec.json.encode([digest.hex() for digest in digests]).decode()
    row = connection.execute(
        "SELECT lost FROM cut_calls JOIN json_each(?) ON lower(hex(digest)) = value "
        "WHERE expires_at > ? ORDER BY key LIMIT 1",
        (wanted, now),
    ).fetchone()
    return bytes(row[0]) if row else None

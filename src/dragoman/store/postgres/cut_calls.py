"""The table of lost tool calls on PostgreSQL."""

import asyncpg

from dragoman.store import cut_calls


async def remember(connection: asyncpg.Connection, digest: bytes, lost: bytes, now: int) -> None:
    await connection.execute(
        "INSERT INTO dragoman.cut_calls (digest, lost, expires_at) VALUES ($1, $2, $3)"
        " ON CONFLICT (digest) DO UPDATE SET lost = $2, expires_at = $3",
        *(digest, lost, now + cut_calls.LIFE_S),
    )
    await connection.execute(
        "DELETE FROM dragoman.cut_calls WHERE expires_at <= $1 OR digest NOT IN"
        " (SELECT digest FROM dragoman.cut_calls ORDER BY expires_at DESC LIMIT $2)",
        *(now, cut_calls.KEPT),
    )


async def recall(connection: asyncpg.Connection, digests: tuple[bytes, ...], now: int) -> bytes | None:
    found = await connection.fetchval(
        "SELECT lost FROM dragoman.cut_calls JOIN unnest($1::bytea[]) WITH ORDINALITY AS wanted (digest, place)"
        " USING (digest) WHERE expires_at > $2 ORDER BY place LIMIT 1",
        *(digests, now),
    )
    return None if found is None else bytes(found)


async def has_any(connection: asyncpg.Connection, now: int) -> bool:
    return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM dragoman.cut_calls WHERE expires_at > $1)", now))

"""The table of lost tool calls on PostgreSQL."""

import asyncpg

from dragoman.store import cut_calls


async def remember(connection: asyncpg.Connection, tenant: str, digest: bytes, lost: bytes, now: int) -> None:
    await connection.execute(
        "INSERT INTO dragoman.cut_calls (tenant, digest, lost, expires_at) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (tenant, digest) DO UPDATE SET lost = $3, expires_at = $4",
        *(tenant, digest, lost, now + cut_calls.LIFE_S),
    )
    await connection.execute(
        "DELETE FROM dragoman.cut_calls WHERE expires_at <= $1 OR tenant = $2 AND digest NOT IN"
        " (SELECT digest FROM dragoman.cut_calls WHERE tenant = $2 ORDER BY expires_at DESC LIMIT $3)",
        *(now, tenant, cut_calls.KEPT_PER_TENANT),
    )
    await connection.execute(
        "DELETE FROM dragoman.cut_calls WHERE (tenant, digest) NOT IN"
        " (SELECT tenant, digest FROM dragoman.cut_calls ORDER BY expires_at DESC LIMIT $1)",
        cut_calls.KEPT,
    )


async def recall(connection: asyncpg.Connection, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
    found = await connection.fetchval(
        "SELECT lost FROM dragoman.cut_calls JOIN unnest($1::bytea[]) WITH ORDINALITY AS wanted (digest, place)"
        " USING (digest) WHERE tenant = $2 AND expires_at > $3 ORDER BY place LIMIT 1",
        *(digests, tenant, now),
    )
    return None if found is None else bytes(found)


async def has_any(connection: asyncpg.Connection, now: int) -> bool:
    return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM dragoman.cut_calls WHERE expires_at > $1)", now))

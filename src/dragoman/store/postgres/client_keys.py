"""The table of client keys on PostgreSQL."""

import asyncpg

from dragoman.store.client_keys import KeyId, KeyRow, NameTaken


async def add(connection: asyncpg.Connection, row: KeyRow, digest: bytes) -> None:
    try:
        await connection.execute(
            "INSERT INTO dragoman.client_keys (id, name, digest, prefix, last4, created_at)"
            " VALUES ($1, $2, $3, $4, $5, $6)",
            *(row.id, row.name, digest, row.prefix, row.last4, row.created_at),
        )
    except asyncpg.UniqueViolationError as error:
        raise NameTaken(row.name) from error


async def add_first(connection: asyncpg.Connection, row: KeyRow, digest: bytes) -> bool:
    async with connection.transaction():
        # Two first starts at once must not make two first keys.
        await connection.execute("LOCK TABLE dragoman.client_keys IN SHARE ROW EXCLUSIVE MODE")
        if await connection.fetchval("SELECT 1 FROM dragoman.client_keys LIMIT 1"):
            return False
        await add(connection, row, digest)
        return True


async def rows(connection: asyncpg.Connection) -> tuple[KeyRow, ...]:
    found = await connection.fetch(
        "SELECT id, name, prefix, last4, created_at, revoked_at, last_used_at FROM dragoman.client_keys ORDER BY place"
    )
    return tuple(KeyRow(*columns) for columns in found)


async def live_digests(connection: asyncpg.Connection) -> dict[bytes, KeyId]:
    found = await connection.fetch("SELECT digest, id FROM dragoman.client_keys WHERE revoked_at IS NULL")
    return {digest: KeyId(key) for digest, key in found}


async def find(connection: asyncpg.Connection, digest: bytes) -> KeyRow | None:
    found = await connection.fetchrow(
        "SELECT id, name, prefix, last4, created_at, revoked_at, last_used_at FROM dragoman.client_keys"
        " WHERE digest = $1",
        digest,
    )
    return KeyRow(*found) if found else None


async def revoke(connection: asyncpg.Connection, which: str, now: int) -> KeyRow | None:
    found = await connection.fetchrow(
        "UPDATE dragoman.client_keys SET revoked_at = $1 WHERE id = (SELECT id FROM dragoman.client_keys"
        " WHERE revoked_at IS NULL AND (id = $2 OR name = $2) ORDER BY id = $2 DESC LIMIT 1)"
        " RETURNING id, name, prefix, last4, created_at, revoked_at, last_used_at",
        *(now, which),
    )
    return KeyRow(*found) if found else None


async def touch(connection: asyncpg.Connection, used: frozenset[KeyId], now: int) -> None:
    await connection.execute(
        "UPDATE dragoman.client_keys SET last_used_at = $1 WHERE id = ANY($2::text[])", now, list(used)
    )


async def changes(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT number FROM dragoman.key_changes"))

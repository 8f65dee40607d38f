"""The SQL statements on client keys, cut tool calls, the audit log and console sessions in PostgreSQL."""

import asyncpg
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

SELECT_KEYS = f"SELECT {', '.join(KEY_COLUMNS)} FROM dragoman.client_keys"  # noqa: S608 - names of our own fields
KEY_PLACES = ", ".join(f"${place}" for place in range(1, len(KEY_COLUMNS) + 2))
INSERT_KEY = f"INSERT INTO dragoman.client_keys ({', '.join(KEY_COLUMNS)}, digest) VALUES ({KEY_PLACES})"  # noqa: S608
SELECT_LIVE_KEYS = """
    SELECT digest, id, role, scopes, expires_at FROM dragoman.client_keys WHERE revoked_at IS NULL
    UNION ALL
    SELECT old_digest, id, role, scopes, least(old_secret_until, expires_at)
    FROM dragoman.client_keys WHERE revoked_at IS NULL AND old_digest IS NOT NULL
"""
CHOSEN_KEY = f"""
    WHERE id = (SELECT id FROM dragoman.client_keys WHERE revoked_at IS NULL AND (id = $1 OR name = $1)
                ORDER BY id = $1 DESC LIMIT 1)
        AND ($2::bigint IS NULL OR version = $2)
    RETURNING {", ".join(KEY_COLUMNS)}
"""  # noqa: S608 - names of our own fields
REVOKE_KEY = f"UPDATE dragoman.client_keys SET revoked_at = $3, version = version + 1 {CHOSEN_KEY}"  # noqa: S608
ROTATE_KEY = f"""
    UPDATE dragoman.client_keys SET old_digest = digest, digest = $3, prefix = $4, last4 = $5, old_secret_until = $6,
        version = version + 1 {CHOSEN_KEY}
"""  # noqa: S608 - names of our own fields


async def add_key(connection: asyncpg.Connection, row: KeyRow, digest: bytes) -> None:
    try:
        await connection.execute(INSERT_KEY, *astuple(row), digest)
    except asyncpg.UniqueViolationError as error:
        raise NameTaken(row.name) from error


async def add_first_key(connection: asyncpg.Connection, row: KeyRow, digest: bytes) -> bool:
    async with connection.transaction():
        # Two processes that start at the same time must not both add a first key.
        await connection.execute("LOCK TABLE dragoman.client_keys IN SHARE ROW EXCLUSIVE MODE")
        if await connection.fetchval("SELECT 1 FROM dragoman.client_keys LIMIT 1"):
            return False
        await add_key(connection, row, digest)
        return True


async def list_keys(connection: asyncpg.Connection) -> tuple[KeyRow, ...]:
    return tuple(KeyRow(*columns) for columns in await connection.fetch(f"{SELECT_KEYS} ORDER BY place"))


async def list_live_keys(connection: asyncpg.Connection) -> tuple[LiveKey, ...]:
    return tuple(LiveKey(*columns) for columns in await connection.fetch(SELECT_LIVE_KEYS))


async def find_key(connection: asyncpg.Connection, digest: bytes) -> KeyRow | None:
    found = await connection.fetchrow(f"{SELECT_KEYS} WHERE digest = $1", digest)
    return KeyRow(*found) if found else None


async def revoke_key(connection: asyncpg.Connection, which: str, now: int, version: int | None) -> KeyRow | None:
    found = await connection.fetchrow(REVOKE_KEY, which, version, now)
    return KeyRow(*found) if found else None


async def rotate_key(
    connection: asyncpg.Connection, which: str, rotation: Rotation, version: int | None
) -> KeyRow | None:
    found = await connection.fetchrow(ROTATE_KEY, which, version, *astuple(rotation))
    return KeyRow(*found) if found else None


async def touch_keys(connection: asyncpg.Connection, used: frozenset[KeyId], now: int) -> None:
    await connection.execute(
        "UPDATE dragoman.client_keys SET last_used_at = $1 WHERE id = ANY($2::text[])", now, list(used)
    )


async def count_key_changes(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT number FROM dragoman.key_changes"))


async def remember_cut(connection: asyncpg.Connection, tenant: str, digest: bytes, lost: bytes, now: int) -> None:
    await connection.execute(
        "INSERT INTO dragoman.cut_calls (tenant, digest, lost, expires_at) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (tenant, digest) DO UPDATE SET lost = $3, expires_at = $4",
        *(tenant, digest, lost, now + CUT_CALL_LIFE_S),
    )
    await connection.execute(
        "DELETE FROM dragoman.cut_calls WHERE expires_at <= $1 OR tenant = $2 AND digest NOT IN"
        " (SELECT digest FROM dragoman.cut_calls WHERE tenant = $2 ORDER BY expires_at DESC LIMIT $3)",
        *(now, tenant, MAX_CUT_CALLS_PER_TENANT),
    )
    await connection.execute(
        "DELETE FROM dragoman.cut_calls WHERE (tenant, digest) NOT IN"
        " (SELECT tenant, digest FROM dragoman.cut_calls ORDER BY expires_at DESC LIMIT $1)",
        MAX_CUT_CALLS,
    )


async def recall_cut(connection: asyncpg.Connection, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
    found = await connection.fetchval(
        "SELECT lost FROM dragoman.cut_calls JOIN unnest($1::bytea[]) WITH ORDINALITY AS candidates (digest, place)"
        " USING (digest) WHERE tenant = $2 AND expires_at > $3 ORDER BY place LIMIT 1",
        *(digests, tenant, now),
    )
    return None if found is None else bytes(found)


async def has_cuts(connection: asyncpg.Connection, now: int) -> bool:
    return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM dragoman.cut_calls WHERE expires_at > $1)", now))


SESSION_NAMES = ", ".join(SESSION_COLUMNS)
SESSION_TABLE = "dragoman.console_sessions"


async def add_audit(connection: asyncpg.Connection, row: AuditRow) -> None:
    async with connection.transaction():
        await connection.execute("LOCK TABLE dragoman.audit IN EXCLUSIVE MODE")  # each row has the hash of the last
        last = next(iter(await list_audit(connection, 2**62, 1)), None)
        await connection.execute(
            "INSERT INTO dragoman.audit (time_ms, actor, action, subject, address, detail, previous)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7)",
            *(row.time_ms, row.actor, row.action, row.subject, row.address, row.detail, hash_audit_row(last)),
        )


async def remove_audit(connection: asyncpg.Connection, before_ms: int) -> int:
    status: str = await connection.execute("DELETE FROM dragoman.audit WHERE time_ms < $1", before_ms)
    return int(status.removeprefix("DELETE "))


async def list_audit(connection: asyncpg.Connection, before: int, limit: int) -> tuple[AuditRow, ...]:
    found = await connection.fetch(
        f"SELECT {AUDIT_COLUMNS} FROM dragoman.audit WHERE number < $1 ORDER BY number DESC LIMIT $2",  # noqa: S608
        *(before, limit),
    )
    return tuple(AuditRow(*columns) for columns in found)


async def add_session(connection: asyncpg.Connection, row: SessionRow) -> None:
    await connection.execute(f"DELETE FROM {SESSION_TABLE} WHERE expires_at <= $1", row.created_at)  # noqa: S608
    places = ", ".join(f"${number + 1}" for number in range(len(SESSION_COLUMNS)))
    await connection.execute(f"INSERT INTO {SESSION_TABLE} ({SESSION_NAMES}) VALUES ({places})", *astuple(row))  # noqa: S608


async def find_session(connection: asyncpg.Connection, digest: bytes) -> SessionRow | None:
    row = await connection.fetchrow(f"SELECT {SESSION_NAMES} FROM {SESSION_TABLE} WHERE digest = $1", digest)  # noqa: S608
    return None if row is None else SessionRow(*row)


async def touch_session(connection: asyncpg.Connection, id: str, used_at: int) -> None:
    await connection.execute(f"UPDATE {SESSION_TABLE} SET used_at = $1 WHERE id = $2", used_at, id)  # noqa: S608


async def end_session(connection: asyncpg.Connection, id: str) -> bool:
    done = await connection.fetch(f"DELETE FROM {SESSION_TABLE} WHERE id = $1 RETURNING id", id)  # noqa: S608
    return bool(done)


async def list_sessions(connection: asyncpg.Connection) -> tuple[SessionRow, ...]:
    found = await connection.fetch(f"SELECT {SESSION_NAMES} FROM {SESSION_TABLE} ORDER BY created_at, id")  # noqa: S608
    return tuple(SessionRow(*row) for row in found)

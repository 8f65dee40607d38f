"""Stored responses and conversations in PostgreSQL."""

# ruff: noqa: S608 - only names of our own columns are put into queries

from collections.abc import Iterable, Sequence
from functools import partial

import asyncpg
from msgspec.structs import astuple, fields

from dragoman.store.postgres.connection import ConnectionPool
from dragoman.store.response_rows import (
    Bounds,
    ConversationLock,
    ConversationRow,
    ItemRow,
    Kept,
    ResponseRow,
)

COLUMNS = ", ".join(field.name for field in fields(ResponseRow))
PLACES = ", ".join(f"${place}" for place in range(1, len(fields(ResponseRow)) + 2))
ADD_RESPONSE = f"INSERT INTO dragoman.responses ({COLUMNS}, bytes) VALUES ({PLACES})"
ITEM = "digest, id, body, hidden"
ADD_ITEMS = """
    WITH added AS (
        INSERT INTO dragoman.response_items (owner, digest, id, body, hidden)
        SELECT $1, * FROM unnest($2::bytea[], $3::text[], $4::bytea[], $5::bytea[])
        ON CONFLICT (owner, digest) DO NOTHING
        RETURNING length(body) + coalesce(length(hidden), 0) AS size
    ) SELECT coalesce(sum(size), 0)::bigint FROM added
"""
REFER = """
    INSERT INTO dragoman.item_references (owner, digest, number)
    SELECT $1, digest, count(*) FROM unnest($2::bytea[]) AS given (digest) GROUP BY digest
    ON CONFLICT (owner, digest) DO UPDATE SET number = item_references.number + excluded.number
"""
RELEASE = """
    UPDATE dragoman.item_references AS kept SET number = kept.number - given.number
    FROM (SELECT digest, count(*) AS number FROM unnest($2::bytea[]) AS all_given (digest) GROUP BY digest) AS given
    WHERE kept.owner = $1 AND kept.digest = given.digest
"""
REMOVE_UNUSED = """
    WITH unused AS (
        DELETE FROM dragoman.item_references WHERE owner = $1 AND digest = ANY($2::bytea[]) AND number <= 0
        RETURNING digest
    ) DELETE FROM dragoman.response_items WHERE owner = $1 AND digest IN (SELECT digest FROM unused)
"""
OVER_BOUNDS = """
    SELECT owner, id FROM (
        SELECT owner, id, created_at, expires_at,
            row_number() OVER (PARTITION BY owner ORDER BY created_at DESC, place DESC) AS number,
            sum(bytes) OVER (PARTITION BY owner ORDER BY created_at DESC, place DESC) AS owner_bytes,
            sum(bytes) OVER (ORDER BY created_at DESC, place DESC) AS total_bytes
        FROM dragoman.responses WHERE status NOT IN ('queued', 'in_progress')
    ) AS ranked WHERE expires_at <= $1 OR number > $2 OR owner_bytes > $3 OR total_bytes > $4
    ORDER BY created_at LIMIT $5
"""
MEASURE = """
    SELECT (SELECT count(*) FROM dragoman.responses WHERE $1::text IS NULL OR owner = $1),
        (SELECT count(*) FROM dragoman.conversations WHERE $1::text IS NULL OR owner = $1),
        (SELECT count(*) FROM dragoman.response_items WHERE $1::text IS NULL OR owner = $1),
        (SELECT coalesce(sum(length(body) + coalesce(length(hidden), 0)), 0)::bigint FROM dragoman.response_items
            WHERE $1::text IS NULL OR owner = $1)
"""
LOCK_SEED = 0x726573  # so that these locks differ from other advisory locks


class PostgresResponses:
    """What changes an owner's rows takes that owner's lock first, so that references are counted right."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections

    async def save_response(self, row: ResponseRow, items: Sequence[ItemRow], appended: Sequence[bytes] = ()) -> bool:
        return await self._connections.run(partial(save_response, row=row, items=items, appended=appended))

    async def add_output(self, owner: str, id: str, items: Sequence[ItemRow]) -> None:
        query = "UPDATE dragoman.responses SET output = $1 WHERE owner = $2 AND id = $3 AND output = ''"
        digests = list(dict.fromkeys(item.digest for item in items))

        async def add(connection: asyncpg.Connection) -> None:
            async with connection.transaction():
                await lock_owner(connection, owner)
                if has_changed(await connection.execute(query, b"".join(digests), owner, id)):
                    await add_items(connection, owner, items)
                    await connection.execute(REFER, owner, digests)

        await self._connections.run(add)

    async def find_response(self, owner: str, id: str, now: int) -> ResponseRow | None:
        query = f"SELECT {COLUMNS} FROM dragoman.responses WHERE owner = $1 AND id = $2 AND expires_at > $3"

        async def find(connection: asyncpg.Connection) -> ResponseRow | None:
            found = await connection.fetchrow(query, owner, id, now)
            return ResponseRow(*found) if found else None

        return await self._connections.run(find)

    async def delete_response(self, owner: str, id: str) -> bool:
        async def delete(connection: asyncpg.Connection) -> bool:
            async with connection.transaction():
                await lock_owner(connection, owner)
                return await _delete_response(connection, owner, id)

        return await self._connections.run(delete)

    async def load_items(self, owner: str, digests: Sequence[bytes]) -> dict[bytes, ItemRow]:
        query = f"SELECT {ITEM} FROM dragoman.response_items WHERE owner = $1 AND digest = ANY($2::bytea[])"

        async def load(connection: asyncpg.Connection) -> dict[bytes, ItemRow]:
            return {item.digest: item for item in map(_item, await connection.fetch(query, owner, list(digests)))}

        return await self._connections.run(load)

    async def find_items(self, owner: str, ids: Sequence[str]) -> dict[str, ItemRow]:
        query = f"SELECT {ITEM} FROM dragoman.response_items WHERE owner = $1 AND id = ANY($2::text[]) ORDER BY place"

        async def find(connection: asyncpg.Connection) -> dict[str, ItemRow]:
            return {item.id: item for item in map(_item, await connection.fetch(query, owner, list(ids)))}

        return await self._connections.run(find)

    async def list_responses(self, owner: str | None, limit: int, now: int) -> tuple[ResponseRow, ...]:
        query = (
            f"SELECT {COLUMNS} FROM dragoman.responses WHERE ($1::text IS NULL OR owner = $1) AND expires_at > $2"
            " ORDER BY created_at DESC, place DESC LIMIT $3"
        )

        async def find(connection: asyncpg.Connection) -> tuple[ResponseRow, ...]:
            return tuple(ResponseRow(*found) for found in await connection.fetch(query, owner, now, limit))

        return await self._connections.run(find)

    async def measure(self, owner: str | None = None) -> Kept:
        async def measure(connection: asyncpg.Connection) -> Kept:
            return Kept(*await connection.fetchrow(MEASURE, owner))

        return await self._connections.run(measure)

    async def remove_responses(self, now: int, bounds: Bounds, limit: int) -> int:
        async def remove(connection: asyncpg.Connection) -> int:
            values = (now, bounds.per_owner, bounds.owner_bytes, bounds.total_bytes, limit)
            async with connection.transaction():
                old = await connection.fetch(OVER_BOUNDS, *values)
                for owner in sorted({owner for owner, _ in old}):
                    await lock_owner(connection, owner)
                removed = [await _delete_response(connection, owner, id) for owner, id in old]
            return sum(removed)

        return await self._connections.run(remove)

    async def add_conversation(self, row: ConversationRow, items: Sequence[ItemRow]) -> None:
        query = "INSERT INTO dragoman.conversations (owner, id, created_at, metadata) VALUES ($1, $2, $3, $4)"

        async def add(connection: asyncpg.Connection) -> None:
            async with connection.transaction():
                await lock_owner(connection, row.owner)
                await connection.execute(query, *astuple(row))
                await extend_conversation(connection, row.owner, row.id, items)

        await self._connections.run(add)

    async def find_conversation(self, owner: str, id: str) -> ConversationRow | None:
        query = "SELECT owner, id, created_at, metadata FROM dragoman.conversations WHERE owner = $1 AND id = $2"

        async def find(connection: asyncpg.Connection) -> ConversationRow | None:
            found = await connection.fetchrow(query, owner, id)
            return ConversationRow(*found) if found else None

        return await self._connections.run(find)

    async def set_metadata(self, owner: str, id: str, metadata: bytes) -> bool:
        query = "UPDATE dragoman.conversations SET metadata = $3 WHERE owner = $1 AND id = $2"
        return await self._changes(query, owner, id, metadata)

    async def delete_conversation(self, owner: str, id: str) -> bool:
        removing = "DELETE FROM dragoman.conversation_items WHERE owner = $1 AND conversation = $2 RETURNING digest"

        async def delete(connection: asyncpg.Connection) -> bool:
            async with connection.transaction():
                await lock_owner(connection, owner)
                await _release(connection, owner, [found[0] for found in await connection.fetch(removing, owner, id)])
                query = "DELETE FROM dragoman.conversations WHERE owner = $1 AND id = $2"
                return has_changed(await connection.execute(query, owner, id))

        return await self._connections.run(delete)

    async def append_items(self, owner: str, conversation: str, items: Sequence[ItemRow]) -> bool:
        async def append(connection: asyncpg.Connection) -> bool:
            async with connection.transaction():
                await lock_owner(connection, owner)
                if not await has_conversation(connection, owner, conversation):
                    return False
                await extend_conversation(connection, owner, conversation, items)
                return True

        return await self._connections.run(append)

    async def list_conversation_items(self, owner: str, conversation: str) -> tuple[ItemRow, ...]:
        query = (
            "SELECT digest, id, body, hidden FROM dragoman.conversation_items AS member"
            " JOIN dragoman.response_items USING (owner, digest)"
            " WHERE owner = $1 AND conversation = $2 ORDER BY member.place"
        )

        async def find(connection: asyncpg.Connection) -> tuple[ItemRow, ...]:
            return tuple(map(_item, await connection.fetch(query, owner, conversation)))

        return await self._connections.run(find)

    async def delete_item(self, owner: str, conversation: str, item: str) -> bool:
        removing = (
            "DELETE FROM dragoman.conversation_items WHERE owner = $1 AND conversation = $2 AND digest IN"
            " (SELECT digest FROM dragoman.response_items WHERE owner = $1 AND id = $3) RETURNING digest"
        )

        async def delete(connection: asyncpg.Connection) -> bool:
            async with connection.transaction():
                await lock_owner(connection, owner)
                removed = [found[0] for found in await connection.fetch(removing, owner, conversation, item)]
                await _release(connection, owner, removed)
                return bool(removed)

        return await self._connections.run(delete)

    async def lock_conversation(self, owner: str, conversation: str, lock: ConversationLock, now: int) -> bool:
        query = (
            "UPDATE dragoman.conversations SET lock_token = $3, lock_until = $4 WHERE owner = $1 AND id = $2"
            " AND (lock_until <= $5 OR lock_token = $3)"
            " AND NOT EXISTS (SELECT 1 FROM dragoman.background_runs WHERE owner = $1 AND conversation = $2)"
        )
        return await self._changes(query, owner, conversation, lock.token, lock.until, now)

    async def unlock_conversation(self, owner: str, conversation: str, token: str) -> None:
        query = "UPDATE dragoman.conversations SET lock_until = 0 WHERE owner = $1 AND id = $2 AND lock_token = $3"
        await self._changes(query, owner, conversation, token)

    async def _changes(self, query: str, *values: str | int | bytes) -> bool:
        async def change(connection: asyncpg.Connection) -> bool:
            return has_changed(await connection.execute(query, *values))

        return await self._connections.run(change)


def has_changed(status: str) -> bool:
    return not status.endswith(" 0")


def _item(found: tuple[bytes, str, bytes, bytes | None]) -> ItemRow:
    return ItemRow(*found)


async def lock_owner(connection: asyncpg.Connection, owner: str) -> None:
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, $2))", owner, LOCK_SEED)


async def save_response(
    connection: asyncpg.Connection, row: ResponseRow, items: Sequence[ItemRow], appended: Sequence[bytes]
) -> bool:
    async with connection.transaction():
        await lock_owner(connection, row.owner)
        exists = "SELECT 1 FROM dragoman.responses WHERE owner = $1 AND id = $2"
        if await connection.fetchval(exists, row.owner, row.id):
            return False
        added = len(row.head) + len(row.context) + await add_items(connection, row.owner, items)
        await connection.execute(ADD_RESPONSE, *astuple(row), added)
        await connection.execute(REFER, row.owner, list(row.digests))
        if appended and await has_conversation(connection, row.owner, row.conversation):
            await extend_conversation(connection, row.owner, row.conversation, (), appended)
        return True


async def _delete_response(connection: asyncpg.Connection, owner: str, id: str) -> bool:
    query = f"DELETE FROM dragoman.responses WHERE owner = $1 AND id = $2 RETURNING {COLUMNS}"
    found = await connection.fetchrow(query, owner, id)
    if not found:
        return False
    row = ResponseRow(*found)
    if row.mode:
        await connection.execute("DELETE FROM dragoman.background_runs WHERE owner = $1 AND id = $2", owner, id)
        await connection.execute("DELETE FROM dragoman.response_events WHERE owner = $1 AND id = $2", owner, id)
    await _release(connection, owner, row.digests)
    return True


async def add_items(connection: asyncpg.Connection, owner: str, items: Sequence[ItemRow]) -> int:
    """Add the items that are not stored yet; return their size."""
    unique = list({item.digest: item for item in items}.values())
    columns = ([item.digest for item in unique], [item.id for item in unique], [item.body for item in unique])
    return int(await connection.fetchval(ADD_ITEMS, owner, *columns, [item.hidden for item in unique]))


async def _release(connection: asyncpg.Connection, owner: str, digests: Iterable[bytes]) -> None:
    """Remove one reference to each of these items, and the items that have none left."""
    released = list(digests)
    await connection.execute(RELEASE, owner, released)
    await connection.execute(REMOVE_UNUSED, owner, released)


async def has_conversation(connection: asyncpg.Connection, owner: str, id: str) -> bool:
    query = "SELECT 1 FROM dragoman.conversations WHERE owner = $1 AND id = $2"
    return bool(await connection.fetchval(query, owner, id))


async def extend_conversation(
    connection: asyncpg.Connection,
    owner: str,
    conversation: str,
    items: Sequence[ItemRow],
    digests: Sequence[bytes] = (),
) -> None:
    await add_items(connection, owner, items)
    added = [*digests, *(item.digest for item in items)]
    await connection.execute(REFER, owner, added)
    query = """
        INSERT INTO dragoman.conversation_items (owner, conversation, place, digest)
        SELECT $1, $2, number + (SELECT coalesce(max(place), 0) FROM dragoman.conversation_items
            WHERE owner = $1 AND conversation = $2), digest
        FROM unnest($3::bytea[]) WITH ORDINALITY AS given (digest, number)
    """
    await connection.execute(query, owner, conversation, added)

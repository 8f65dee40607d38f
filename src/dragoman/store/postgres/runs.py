"""Background responses and their events in PostgreSQL."""

# ruff: noqa: S608 - only names of our own columns are put into queries

from collections.abc import Sequence

import asyncpg

from dragoman.store.postgres.connection import ConnectionPool
from dragoman.store.postgres.responses import (
    COLUMNS,
    REFER,
    add_items,
    extend_conversation,
    has_changed,
    has_conversation,
    lock_owner,
    save_response,
)
from dragoman.store.response_rows import (
    Ending,
    EventChunk,
    FinishedRun,
    ItemRow,
    QueuedRun,
    ResponseRow,
    Run,
    RunEvents,
    StoredEvents,
)

ADD_EVENTS = """
    INSERT INTO dragoman.response_events (owner, id, first, last, body, created_at) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (owner, id, first) DO NOTHING
"""
RUNNING = (
    "(SELECT count(*) FROM dragoman.background_runs AS running WHERE running.owner = queued.owner AND token <> '')"
)
QUEUED = f"""
    SELECT owner, id FROM dragoman.background_runs AS queued WHERE token = '' AND {RUNNING} < $1
    ORDER BY place LIMIT $2
"""
CLAIM = f"""
    UPDATE dragoman.background_runs AS queued SET token = $3, lease_until = $4
    WHERE owner = $1 AND id = $2 AND token = '' AND {RUNNING} < $5 RETURNING request
"""
END = """
    DELETE FROM dragoman.background_runs WHERE owner = $1 AND id = $2
    AND ($3::bigint IS NULL OR (token <> '' AND lease_until <= $3)) RETURNING last_event
"""
REMOVE_EVENTS = """
    DELETE FROM dragoman.response_events WHERE (owner, id) IN (
        SELECT owner, id FROM dragoman.response_events AS events GROUP BY owner, id HAVING max(created_at) < $1
            AND NOT EXISTS (
                SELECT 1 FROM dragoman.background_runs AS run WHERE run.owner = events.owner AND run.id = events.id
            )
        LIMIT $2
    ) RETURNING owner, id
"""


class PostgresRuns:
    """What changes a response takes the lock of its owner first; adding events only locks the rows of their runs."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections

    async def queue_run(self, row: ResponseRow, items: Sequence[ItemRow], run: QueuedRun, most: int) -> bool:
        counting = "SELECT count(*) FROM dragoman.background_runs WHERE owner = $1"
        adding = (
            "INSERT INTO dragoman.background_runs (owner, id, conversation, request, last_event, token, lease_until)"
            " VALUES ($1, $2, $3, $4, $5, '', 0)"
        )

        async def queue(connection: asyncpg.Connection) -> bool:
            async with connection.transaction():
                await lock_owner(connection, row.owner)
                if int(await connection.fetchval(counting, row.owner)) >= most:
                    return False
                if not await save_response(connection, row, items, ()):
                    return False
                await connection.execute(adding, row.owner, row.id, row.conversation, run.request, run.last_event)
                if run.events:
                    chunk = EventChunk(0, run.last_event, run.events)
                    await _add_chunk(connection, row.owner, row.id, chunk, row.created_at)
            return True

        return await self._connections.run(queue)

    async def claim_runs(self, tokens: Sequence[str], until: int, per_owner: int) -> tuple[Run, ...]:
        beginning = (
            f"UPDATE dragoman.responses SET status = 'in_progress' WHERE owner = $1 AND id = $2 RETURNING {COLUMNS}"
        )

        async def take(connection: asyncpg.Connection) -> tuple[Run, ...]:
            runs: list[Run] = []
            for owner, id in await connection.fetch(QUEUED, per_owner, 2 * len(tokens)):
                if len(runs) == len(tokens):
                    break
                token = tokens[len(runs)]
                async with connection.transaction():
                    await lock_owner(connection, owner)
                    request = await connection.fetchval(CLAIM, owner, id, token, until, per_owner)
                    if request is not None:  # else another process was faster
                        row = await connection.fetchrow(beginning, owner, id)
                        runs.append(Run(ResponseRow(*row), token, request))
            return tuple(runs)

        return await self._connections.run(take)

    async def extend_claims(self, tokens: Sequence[str], until: int) -> frozenset[str]:
        query = "UPDATE dragoman.background_runs SET lease_until = $2 WHERE token = ANY($1::text[]) RETURNING token"
        return await self._tokens(query, list(tokens), until)

    async def find_claims(self, tokens: Sequence[str]) -> frozenset[str]:
        return await self._tokens(
            "SELECT token FROM dragoman.background_runs WHERE token = ANY($1::text[])", list(tokens)
        )

    async def _tokens(self, query: str, *values: list[str] | int) -> frozenset[str]:
        async def find(connection: asyncpg.Connection) -> frozenset[str]:
            return frozenset(found[0] for found in await connection.fetch(query, *values))

        return await self._connections.run(find)

    async def add_events(self, events: Sequence[RunEvents], now: int) -> None:
        query = "UPDATE dragoman.background_runs SET last_event = $2 WHERE token = $1 RETURNING owner, id"

        async def add(connection: asyncpg.Connection) -> None:
            async with connection.transaction():
                for one in events:
                    found = await connection.fetchrow(query, one.token, one.chunk.last)
                    if found:
                        await _add_chunk(connection, found[0], found[1], one.chunk, now)

        await self._connections.run(add)

    async def finish_run(self, finished: FinishedRun, now: int) -> bool:
        row = finished.row
        removing = "DELETE FROM dragoman.background_runs WHERE owner = $1 AND id = $2 AND token = $3"
        reading = f"SELECT {COLUMNS} FROM dragoman.responses WHERE owner = $1 AND id = $2"
        ending = (
            "UPDATE dragoman.responses SET status = $3, route = $4, head = $5, output = $6, bytes = bytes + $7"
            " WHERE owner = $1 AND id = $2"
        )

        async def finish(connection: asyncpg.Connection) -> bool:
            async with connection.transaction():
                await lock_owner(connection, row.owner)
                if not has_changed(await connection.execute(removing, row.owner, row.id, finished.token)):
                    return False
                known = ResponseRow(*await connection.fetchrow(reading, row.owner, row.id)).digests
                added = await add_items(connection, row.owner, finished.items)
                await connection.execute(REFER, row.owner, [digest for digest in row.digests if digest not in known])
                values = (row.status, row.route, row.head, row.output, added)
                await connection.execute(ending, row.owner, row.id, *values)
                for chunk in finished.chunks:
                    await _add_chunk(connection, row.owner, row.id, chunk, now)
                if finished.appended and await has_conversation(connection, row.owner, row.conversation):
                    await extend_conversation(connection, row.owner, row.conversation, (), finished.appended)
            return True

        return await self._connections.run(finish)

    async def end_run(self, owner: str, id: str, ending: Ending, now: int) -> bool:
        query = "UPDATE dragoman.responses SET status = $3, head = $4 WHERE owner = $1 AND id = $2"

        async def end(connection: asyncpg.Connection) -> bool:
            async with connection.transaction():
                await lock_owner(connection, owner)
                last = await connection.fetchval(END, owner, id, ending.expired_at)
                if last is None:
                    return False
                await connection.execute(query, owner, id, ending.status, ending.head)
                if ending.make_event is not None:
                    chunk = EventChunk(last + 1, last + 1, ending.make_event(last + 1))
                    await _add_chunk(connection, owner, id, chunk, now)
            return True

        return await self._connections.run(end)

    async def list_lost_runs(self, now: int, limit: int) -> tuple[Run, ...]:
        columns = ", ".join(f"responses.{name}" for name in COLUMNS.split(", "))
        query = (
            f"SELECT token, request, {columns} FROM dragoman.background_runs"
            " JOIN dragoman.responses USING (owner, id) WHERE token <> '' AND lease_until <= $1 LIMIT $2"
        )

        async def find(connection: asyncpg.Connection) -> tuple[Run, ...]:
            found = await connection.fetch(query, now, limit)
            return tuple(Run(ResponseRow(*row), token, request) for token, request, *row in found)

        return await self._connections.run(find)

    async def load_events(self, owner: str, id: str, after: int, limit: int) -> StoredEvents:
        running = "SELECT 1 FROM dragoman.background_runs WHERE owner = $1 AND id = $2"
        query = (
            "SELECT first, last, body FROM dragoman.response_events WHERE owner = $1 AND id = $2 AND last > $3"
            " ORDER BY first LIMIT $4"
        )

        async def load(connection: asyncpg.Connection) -> StoredEvents:
            # In this order: a response that has ended has all its events.
            is_running = bool(await connection.fetchval(running, owner, id))
            found = await connection.fetch(query, owner, id, after, limit)
            return StoredEvents(tuple(EventChunk(*chunk) for chunk in found), is_running)

        return await self._connections.run(load)

    async def remove_events(self, before: int, limit: int) -> int:
        async def remove(connection: asyncpg.Connection) -> int:
            return len(set(await connection.fetch(REMOVE_EVENTS, before, limit)))

        return await self._connections.run(remove)


async def _add_chunk(connection: asyncpg.Connection, owner: str, id: str, chunk: EventChunk, now: int) -> None:
    if chunk.body:
        await connection.execute(ADD_EVENTS, owner, id, chunk.first, chunk.last, chunk.body, now)
    else:
        await connection.execute("DELETE FROM dragoman.response_events WHERE owner = $1 AND id = $2", owner, id)

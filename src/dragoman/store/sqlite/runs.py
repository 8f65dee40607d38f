"""Background responses and their events in SQLite."""

# ruff: noqa: S608 - only names of our own columns are put into queries

from collections.abc import Sequence

import apsw

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
from dragoman.store.sqlite.connection import Runner, has_changed, only_row
from dragoman.store.sqlite.responses import (
    COLUMNS,
    Save,
    add_items,
    add_references,
    extend_conversation,
    has_conversation,
    save_response,
)

ADD_EVENTS = (
    "INSERT INTO response_events (owner, id, first, last, body, created_at) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (owner, id, first) DO NOTHING"
)
OLDEST_QUEUED = """
    SELECT owner, id, request FROM background_runs AS queued WHERE token = ''
        AND (SELECT count(*) FROM background_runs AS running
            WHERE running.owner = queued.owner AND running.token <> '') < ?
    ORDER BY rowid LIMIT 1
"""
ENDED_EVENTS = """
    SELECT owner, id FROM response_events AS events GROUP BY owner, id HAVING max(created_at) < ?1
        AND NOT EXISTS (SELECT 1 FROM background_runs AS run WHERE run.owner = events.owner AND run.id = events.id)
    LIMIT ?2
"""


class SqliteRuns:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def queue_run(self, row: ResponseRow, items: Sequence[ItemRow], run: QueuedRun, most: int) -> bool:
        def queue(connection: apsw.Connection) -> bool:
            counting = "SELECT count(*) FROM background_runs WHERE owner = ?"
            [unfinished] = only_row(connection.execute(counting, (row.owner,)))
            if unfinished >= most or not save_response(connection, Save(row, items)):
                return False
            query = (
                "INSERT INTO background_runs (owner, id, conversation, request, last_event, token, lease_until)"
                " VALUES (?, ?, ?, ?, ?, '', 0)"
            )
            connection.execute(query, (row.owner, row.id, row.conversation, run.request, run.last_event))
            if run.events:
                values = (row.owner, row.id, 0, run.last_event, run.events, row.created_at)
                connection.execute(ADD_EVENTS, values)
            return True

        return await self._runner.write(queue)

    async def claim_runs(self, tokens: Sequence[str], until: int, per_owner: int) -> tuple[Run, ...]:
        def take(connection: apsw.Connection) -> tuple[Run, ...]:
            runs = []
            for token in tokens:
                found = connection.execute(OLDEST_QUEUED, (per_owner,)).fetchone()
                if not found:
                    break
                owner, id, request = found
                taking = "UPDATE background_runs SET token = ?, lease_until = ? WHERE owner = ? AND id = ?"
                connection.execute(taking, (token, until, owner, id))
                query = f"UPDATE responses SET status = 'in_progress' WHERE owner = ? AND id = ? RETURNING {COLUMNS}"
                [row] = connection.execute(query, (owner, id))
                runs.append(Run(ResponseRow(*row), token, bytes(request)))
            return tuple(runs)

        def has_queued(connection: apsw.Connection) -> bool:
            return bool(connection.execute("SELECT 1 FROM background_runs WHERE token = '' LIMIT 1").fetchone())

        if not await self._runner.read(has_queued):  # without the lock that other processes wait for
            return ()
        return await self._runner.write(take)

    async def extend_claims(self, tokens: Sequence[str], until: int) -> frozenset[str]:
        query = "UPDATE background_runs SET lease_until = ? WHERE token = ?"

        def extend(connection: apsw.Connection) -> frozenset[str]:
            return frozenset(token for token in tokens if has_changed(connection, query, (until, token)))

        return await self._runner.write(extend)

    async def find_claims(self, tokens: Sequence[str]) -> frozenset[str]:
        query = "SELECT 1 FROM background_runs WHERE token = ?"

        def find(connection: apsw.Connection) -> frozenset[str]:
            return frozenset(token for token in tokens if connection.execute(query, (token,)).fetchone())

        return await self._runner.read(find)

    async def add_events(self, events: Sequence[RunEvents], now: int) -> None:
        def add(connection: apsw.Connection) -> None:
            for one in events:
                query = "UPDATE background_runs SET last_event = ? WHERE token = ? RETURNING owner, id"
                found = connection.execute(query, (one.chunk.last, one.token)).fetchone()
                if found:
                    _add_chunk(connection, str(found[0]), str(found[1]), one.chunk, now)

        await self._runner.write(add)

    async def finish_run(self, finished: FinishedRun, now: int) -> bool:
        row = finished.row

        def finish(connection: apsw.Connection) -> bool:
            query = "DELETE FROM background_runs WHERE owner = ? AND id = ? AND token = ?"
            if not has_changed(connection, query, (row.owner, row.id, finished.token)):
                return False
            reading = f"SELECT {COLUMNS} FROM responses WHERE owner = ? AND id = ?"
            [queued] = connection.execute(reading, (row.owner, row.id))
            known = ResponseRow(*queued).digests
            added = add_items(connection, row.owner, finished.items)
            add_references(connection, row.owner, [digest for digest in row.digests if digest not in known])
            ending = (
                "UPDATE responses SET status = ?, route = ?, head = ?, output = ?, bytes = bytes + ?"
                " WHERE owner = ? AND id = ?"
            )
            connection.execute(ending, (row.status, row.route, row.head, row.output, added, row.owner, row.id))
            for chunk in finished.chunks:
                _add_chunk(connection, row.owner, row.id, chunk, now)
            if finished.appended and has_conversation(connection, row.owner, row.conversation):
                extend_conversation(connection, row.owner, row.conversation, (), finished.appended)
            return True

        return await self._runner.write(finish)

    async def end_run(self, owner: str, id: str, ending: Ending, now: int) -> bool:
        def end(connection: apsw.Connection) -> bool:
            removing = (
                "DELETE FROM background_runs WHERE owner = ?1 AND id = ?2"
                " AND (?3 IS NULL OR (token <> '' AND lease_until <= ?3)) RETURNING last_event"
            )
            found = list(connection.execute(removing, (owner, id, ending.expired_at)))
            if not found:
                return False
            query = "UPDATE responses SET status = ?, head = ? WHERE owner = ? AND id = ?"
            connection.execute(query, (ending.status, ending.head, owner, id))
            if ending.make_event is not None:
                [number] = only_row(found)
                chunk = EventChunk(number + 1, number + 1, ending.make_event(number + 1))
                _add_chunk(connection, owner, id, chunk, now)
            return True

        return await self._runner.write(end)

    async def list_lost_runs(self, now: int, limit: int) -> tuple[Run, ...]:
        columns = ", ".join(f"responses.{name}" for name in COLUMNS.split(", "))
        query = (
            f"SELECT token, request, {columns} FROM background_runs JOIN responses USING (owner, id)"
            " WHERE token <> '' AND lease_until <= ? LIMIT ?"
        )

        def find(connection: apsw.Connection) -> tuple[Run, ...]:
            found = connection.execute(query, (now, limit))
            return tuple(Run(ResponseRow(*row), str(token), bytes(request)) for token, request, *row in found)

        return await self._runner.read(find)

    async def load_events(self, owner: str, id: str, after: int, limit: int) -> StoredEvents:
        running = "SELECT 1 FROM background_runs WHERE owner = ? AND id = ?"
        query = (
            "SELECT first, last, body FROM response_events WHERE owner = ? AND id = ? AND last > ?"
            " ORDER BY first LIMIT ?"
        )

        def load(connection: apsw.Connection) -> StoredEvents:
            # In this order: a response that has ended has all its events.
            is_running = bool(connection.execute(running, (owner, id)).fetchone())
            found = connection.execute(query, (owner, id, after, limit))
            return StoredEvents(tuple(EventChunk(*chunk) for chunk in found), is_running)

        return await self._runner.read(load)

    async def remove_events(self, before: int, limit: int) -> int:
        def remove(connection: apsw.Connection) -> int:
            ended = list(connection.execute(ENDED_EVENTS, (before, limit)))
            connection.executemany("DELETE FROM response_events WHERE owner = ? AND id = ?", ended)
            return len(ended)

        return await self._runner.write(remove)


def _add_chunk(connection: apsw.Connection, owner: str, id: str, chunk: EventChunk, now: int) -> None:
    if chunk.body:
        connection.execute(ADD_EVENTS, (owner, id, chunk.first, chunk.last, chunk.body, now))
    else:
        connection.execute("DELETE FROM response_events WHERE owner = ? AND id = ?", (owner, id))

"""Background responses that have not ended, and their events."""

# ruff: noqa: S608 - only names of our own columns are put into statements

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.store.database import Session, StorePart, fetch_among, find, reads, writes
from dragoman.store.response_rows import (
    EVENTS_BYTES,
    Ending,
    EventChunk,
    FinishedRun,
    Kept,
    OwnedId,
    QueuedRun,
    ResponseRow,
    RunEvents,
    RunRow,
    StoredEvents,
    TimedLock,
)
from dragoman.store.stored_conversations import add_reply
from dragoman.store.stored_items import add_items, add_references
from dragoman.store.stored_removal import COLUMNS, measure_row, remove_events
from dragoman.store.stored_saving import Save, save_response
from dragoman.store.stored_totals import Changes, change

ADD_RUN = """
    INSERT INTO dragoman.background_runs (owner, id, conversation, request, last_event, token, lease_until)
    VALUES ($1, $2, $3, $4, $5, '', 0)
"""
ADD_EVENTS = """
    INSERT INTO dragoman.response_events (owner, id, first, last, body, created_at) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (owner, id, first) DO NOTHING
"""
QUEUED = """
    SELECT owner, id FROM dragoman.background_runs WHERE token = '' AND owner NOT IN (
        SELECT owner FROM dragoman.background_runs WHERE token <> '' GROUP BY owner HAVING count(*) >= $1
    ) ORDER BY @row LIMIT $2
"""
CLAIM = """
    UPDATE dragoman.background_runs AS queued SET token = $3, lease_until = $4
    WHERE owner = $1 AND id = $2 AND token = '' AND (
        SELECT count(*) FROM dragoman.background_runs AS running WHERE running.owner = $1 AND running.token <> ''
    ) < $5 RETURNING request
"""
MARK = """
    UPDATE dragoman.responses SET status = $4 WHERE owner = $1 AND id = $2 AND EXISTS (
        SELECT 1 FROM dragoman.background_runs AS run WHERE run.owner = $1 AND run.id = $2 AND run.token = $3
    )
"""
REMOVE_RUN = """
    DELETE FROM dragoman.background_runs WHERE owner = $1 AND id = $2
    AND ($3::bigint IS NULL OR (token <> '' AND lease_until <= $3)) RETURNING last_event, length(request)
"""
REMOVE_CLAIMED = """
    DELETE FROM dragoman.background_runs WHERE owner = $1 AND id = $2 AND token = $3
    RETURNING last_event, length(request)
"""
ENDED_EVENTS = """
    SELECT owner, id FROM dragoman.response_events AS events WHERE created_at < $1
        AND NOT EXISTS (
            SELECT 1 FROM dragoman.background_runs AS run WHERE run.owner = events.owner AND run.id = events.id
        ) AND NOT EXISTS (
            SELECT 1 FROM dragoman.response_events AS later
            WHERE later.owner = events.owner AND later.id = events.id AND later.created_at >= $1
        )
    ORDER BY created_at LIMIT $2
"""


class Runs(StorePart):
    """Background responses that have not ended, and events. Every operation may raise StoreError.

    What changes a response locks its owner; adding events only locks the rows of their runs.
    """

    @writes
    async def queue_run(self, session: Session, row: ResponseRow, run: QueuedRun, most: int) -> bool:
        """Add a queued response with its items; False if its owner has `most` that have not ended."""
        await session.lock(row.owner)
        counting = "SELECT count(*) FROM dragoman.background_runs WHERE owner = $1"
        [unfinished] = await session.fetch(int, counting, row.owner)
        if unfinished >= most or not await save_response(session, Save(row, run.items)):
            return False
        async with change(session) as changes:
            await session.execute(ADD_RUN, row.owner, row.id, row.conversation, run.request, run.last_event)
            changes.count(row.owner, Kept(bytes=EVENTS_BYTES + len(run.request)))
            if run.events:
                chunk = EventChunk(0, run.last_event, run.events)
                await _add_chunk(changes, row.owned_id, chunk, row.created_at)
        return True

    async def claim_runs(self, tokens: Sequence[str], until: int, per_owner: int) -> tuple[RunRow, ...]:
        """Take the oldest queued responses, one for each token, with a lease until then. They are then in progress.

        Those of an owner of which `per_owner` run are left.
        """
        runs: list[RunRow] = []
        # More than there are tokens, as other processes take some of them. Reading takes no lock.
        for queued in await self._list_queued(per_owner, 2 * len(tokens)):
            if len(runs) == len(tokens):
                break
            run = await self._claim(queued, TimedLock(tokens[len(runs)], until), per_owner)
            if run is not None:
                runs.append(run)
        return tuple(runs)

    @reads
    async def _list_queued(self, session: Session, per_owner: int, limit: int) -> list[OwnedId]:
        return await session.fetch(OwnedId, QUEUED, per_owner, limit)

    @writes
    async def _claim(self, session: Session, run: OwnedId, lock: TimedLock, per_owner: int) -> RunRow | None:
        await session.lock(run.owner)
        request = await find(session, bytes, CLAIM, run.owner, run.id, lock.token, lock.until, per_owner)
        if request is None:  # another process was faster
            return None
        beginning = (
            f"UPDATE dragoman.responses SET status = 'in_progress' WHERE owner = $1 AND id = $2 RETURNING {COLUMNS}"
        )
        [row] = await session.fetch(ResponseRow, beginning, run.owner, run.id)
        return RunRow(row, lock.token, request)

    @writes
    async def mark_run(self, session: Session, run: OwnedId, token: str, status: str) -> None:
        """Store whether a claimed response waits, or is in progress; nothing if others have ended it."""
        await session.lock(run.owner)
        await session.execute(MARK, run.owner, run.id, token, status)

    @writes
    async def extend_claims(self, session: Session, tokens: Sequence[str], until: int) -> frozenset[str]:
        """Extend the leases of these claims; return those whose response has not been ended by others."""
        statement = "UPDATE dragoman.background_runs SET lease_until = $1 WHERE token IN ({among}) RETURNING token"
        return frozenset(await fetch_among(session, str, statement, tokens, until))

    @reads
    async def find_claims(self, session: Session, tokens: Sequence[str]) -> frozenset[str]:
        """Return those of these claims whose response has not been ended by others."""
        statement = "SELECT token FROM dragoman.background_runs WHERE token IN ({among})"
        return frozenset(await fetch_among(session, str, statement, tokens))

    @writes
    async def add_events(self, session: Session, events: Sequence[RunEvents], now: int) -> None:
        """Add events of claimed responses; those of responses that others have ended are left out."""
        statement = "UPDATE dragoman.background_runs SET last_event = $2 WHERE token = $1 RETURNING owner, id"
        async with change(session) as changes:
            for one in events:
                found = await find(session, OwnedId, statement, one.token, one.chunk.last)
                if found is not None:
                    await _add_chunk(changes, found, one.chunk, now)

    @writes
    async def finish_run(self, session: Session, finished: FinishedRun, now: int) -> bool:
        """Store how a claimed response has ended; False if others have ended it."""
        row = finished.row
        async with change(session, row.owner) as changes:
            if await _end_run(changes, REMOVE_CLAIMED, row.owned_id, finished.token) is None:
                return False
            reading = f"SELECT {COLUMNS} FROM dragoman.responses WHERE owner = $1 AND id = $2"
            [queued] = await session.fetch(ResponseRow, reading, row.owner, row.id)
            ended = replace(queued, status=row.status, route=row.route, head=row.head, output=row.output)
            new = {*ended.digests} - {*queued.digests}
            await add_items(changes, row.owner, (item for item in finished.items if item.digest in new))
            await add_references(changes, row.owner, new)
            ending = (
                "UPDATE dragoman.responses SET status = $3, route = $4, head = $5, output = $6"
                " WHERE owner = $1 AND id = $2"
            )
            await session.execute(ending, row.owner, row.id, row.status, row.route, row.head, row.output)
            changes.count(row.owner, Kept(bytes=measure_row(ended) - measure_row(queued)))
            for chunk in finished.chunks:
                await _add_chunk(changes, row.owned_id, chunk, now)
            if finished.appended:
                await add_reply(changes, ended, finished.appended)
        return True

    @writes
    async def end_run(self, session: Session, run: OwnedId, ending: Ending, now: int) -> bool:
        """End a response without a reply; False if it has already ended."""
        async with change(session, run.owner) as changes:
            last = await _end_run(changes, REMOVE_RUN, run, ending.expired_at)
            if last is None:
                return False
            reading = "SELECT length(head) FROM dragoman.responses WHERE owner = $1 AND id = $2"
            [length] = await session.fetch(int, reading, run.owner, run.id)
            statement = "UPDATE dragoman.responses SET status = $3, head = $4 WHERE owner = $1 AND id = $2"
            await session.execute(statement, run.owner, run.id, ending.status, ending.head)
            changes.count(run.owner, Kept(bytes=len(ending.head) - length))
            if ending.make_event is not None:
                chunk = EventChunk(last + 1, last + 1, ending.make_event(last + 1))
                await _add_chunk(changes, run, chunk, now)
        return True

    @reads
    async def list_lost_runs(self, session: Session, now: int, limit: int) -> tuple[RunRow, ...]:
        """Return responses whose lease has ended: the process that ran them has."""
        lost = (
            "SELECT owner, id, token, request FROM dragoman.background_runs"
            " WHERE token <> '' AND lease_until <= $1 LIMIT $2"
        )
        reading = f"SELECT {COLUMNS} FROM dragoman.responses WHERE owner = $1 AND id = $2"
        runs: list[RunRow] = []
        for owner, id, token, request in await session.fetch(_make_claim, lost, now, limit):
            runs += [RunRow(row, token, request) for row in await session.fetch(ResponseRow, reading, owner, id)]
        return tuple(runs)

    @reads
    async def load_events(self, session: Session, run: OwnedId, after: int, limit: int) -> StoredEvents:
        """Return at most `limit` chunks with events whose number is greater than `after`, in order."""
        running = "SELECT 1 FROM dragoman.background_runs WHERE owner = $1 AND id = $2"
        statement = (
            "SELECT first, last, body FROM dragoman.response_events WHERE owner = $1 AND id = $2 AND last > $3"
            " ORDER BY first LIMIT $4"
        )
        # In this order: a response that has ended has all its events.
        is_running = await find(session, int, running, run.owner, run.id) is not None
        chunks = await session.fetch(EventChunk, statement, run.owner, run.id, after, limit)
        return StoredEvents(tuple(chunks), is_running)

    @writes
    async def remove_events(self, session: Session, before: int, limit: int) -> int:
        """Remove the events of at most `limit` responses that have ended before this time; return how many."""
        async with change(session) as changes:
            ended = {*await session.fetch(OwnedId, ENDED_EVENTS, before, limit)}  # once for each chunk
            for run in sorted(ended):
                await remove_events(changes, run)
        return len(ended)


async def _end_run(changes: Changes, statement: str, run: OwnedId, condition: str | int | None) -> int | None:
    """Remove the row of a run; return the number of its last event, None if the condition does not hold."""
    found = await find(changes.session, _make_end, statement, run.owner, run.id, condition)
    if found is None:
        return None
    last, size = found
    changes.count(run.owner, Kept(bytes=-size - EVENTS_BYTES))
    return last


async def _add_chunk(changes: Changes, run: OwnedId, chunk: EventChunk, now: int) -> None:
    if not chunk.body:
        await remove_events(changes, run)
    elif await changes.session.execute(ADD_EVENTS, run.owner, run.id, chunk.first, chunk.last, chunk.body, now):
        changes.count(run.owner, Kept(bytes=len(chunk.body) + EVENTS_BYTES))


def _make_end(last: int, size: int) -> tuple[int, int]:
    return last, size


def _make_claim(owner: str, id: str, token: str, request: bytes) -> tuple[str, str, str, bytes]:
    return owner, id, token, request

"""Removing of responses: those that were deleted, have expired, or exceed the bounds.

Every row is found by an index, whose condition the statements repeat word for word.
"""

# ruff: noqa: S608 - only names of our own columns are put into statements

from dragoman.store.database import Session, find
from dragoman.store.response_rows import EVENTS_BYTES, RESPONSE_BYTES, Bounds, Kept, ResponseRow
from dragoman.store.stored_items import release
from dragoman.store.stored_totals import Changes, change, read_totals

COLUMNS = ", ".join("input" if name == "context" else name for name in ResponseRow.__struct_fields__)
MAX_CASCADE = 32  # rows that are removed with the last response that continues them; the others follow in time
ITEMS_PER_ROW = 20  # this many items take as long as a row

VISIBLE = "owner = $1 AND removed = 0"
ENDED = "status NOT IN ('queued', 'in_progress')"
EXPIRED = f"{VISIBLE} AND expires_at <= $2 AND {ENDED}"
OLDEST = f"SELECT id FROM dragoman.responses WHERE {VISIBLE} AND {ENDED} ORDER BY expires_at, @row LIMIT 1"
# The response that no other one continues, and that is the oldest of these. The one that it continues is even older,
# so that a chain which is no longer used is removed from its end to its beginning, and the others stay whole.
OLDEST_END = (
    f"SELECT id FROM dragoman.responses WHERE {VISIBLE} AND children = 0 AND {ENDED} ORDER BY expires_at, @row LIMIT 1"
)
UNUSED = "owner = $1 AND removed = 1 AND children = 0"
NEEDS_CLEANING = """
    SELECT owner FROM dragoman.stored_totals AS held WHERE responses > $2 OR bytes > $3
        OR EXISTS (
            SELECT 1 FROM dragoman.responses WHERE owner = held.owner AND removed = 0 AND expires_at <= $1
                AND status NOT IN ('queued', 'in_progress')
        ) OR EXISTS (
            SELECT 1 FROM dragoman.responses WHERE owner = held.owner AND removed = 1 AND children = 0
        )
"""
HIDE = """
    UPDATE dragoman.responses SET removed = 1, head = $3, settings = $3, model = '', route = '', conversation = '',
        keeper = '', account = ''
    WHERE owner = $1 AND id = $2
"""


def measure_row(row: ResponseRow) -> int:
    """Return the size of a row as it is stored, without the context that its base holds."""
    return RESPONSE_BYTES + len(row.head) + len(row.context) + len(row.output)


async def remove_response(changes: Changes, owner: str, id: str) -> ResponseRow | None:
    """Remove a response, its run and its events, and the items that nothing else refers to; return what it was."""
    session = changes.session
    deleting = f"DELETE FROM dragoman.responses WHERE {VISIBLE} AND id = $2 AND children = 0 RETURNING {COLUMNS}"
    row = await find(session, ResponseRow, deleting, owner, id)
    if row is not None:
        changes.count(owner, Kept(responses=-1, bytes=-measure_row(row)))
        await _remove_run(changes, row)
        await release(changes, owner, row.digests)
        await _release_base(changes, owner, row.base)
        return row
    reading = f"SELECT {COLUMNS} FROM dragoman.responses WHERE {VISIBLE} AND id = $2"
    row = await find(session, ResponseRow, reading, owner, id)
    if row is not None:  # others continue it
        await session.execute(HIDE, owner, id, b"")
        changes.count(owner, Kept(responses=-1, bytes=-len(row.head)))
        await _remove_run(changes, row)
        await release(changes, owner, [row.settings] if row.settings else [])
    return row


async def _remove_run(changes: Changes, row: ResponseRow) -> None:
    if not row.mode:
        return
    removing = "DELETE FROM dragoman.background_runs WHERE owner = $1 AND id = $2 RETURNING length(request)"
    for size in await changes.session.fetch(int, removing, row.owner, row.id):
        changes.count(row.owner, Kept(bytes=-size - EVENTS_BYTES))
    await remove_events(changes, row.owner, row.id)


async def remove_events(changes: Changes, owner: str, id: str) -> None:
    """Remove the events of a response."""
    removing = "DELETE FROM dragoman.response_events WHERE owner = $1 AND id = $2 RETURNING length(body)"
    for size in await changes.session.fetch(int, removing, owner, id):
        changes.count(owner, Kept(bytes=-size - EVENTS_BYTES))


async def _release_base(changes: Changes, owner: str, base: str) -> None:
    """Note that one response less continues this one, and remove it if it was hidden and nothing continues it now."""
    releasing = (
        "UPDATE dragoman.responses SET children = children - 1 WHERE owner = $1 AND id = $2"
        " RETURNING CASE WHEN removed = 1 AND children = 0 THEN 1 ELSE 0 END"
    )
    for _ in range(MAX_CASCADE):
        if not base or not await find(changes.session, int, releasing, owner, base):
            return
        base = await _remove_hidden(changes, owner, base)
    if base:
        await changes.session.execute(
            "UPDATE dragoman.responses SET children = children - 1 WHERE owner = $1 AND id = $2", owner, base
        )


async def _remove_hidden(changes: Changes, owner: str, id: str) -> str:
    """Remove a hidden row that nothing continues; return its base."""
    deleting = f"DELETE FROM dragoman.responses WHERE {UNUSED} AND id = $2 RETURNING {COLUMNS}"
    row = await find(changes.session, ResponseRow, deleting, owner, id)
    if row is None:
        return ""
    changes.count(owner, Kept(bytes=-measure_row(row)))
    await release(changes, owner, row.digests)
    return row.base


async def list_owners_to_clean(session: Session, now: int, bounds: Bounds) -> list[str]:
    """Return the owners that have something expired, or more than they may have."""
    return await session.fetch(str, NEEDS_CLEANING, now, bounds.per_owner, bounds.owner_bytes)


async def has_expired(session: Session, owner: str, now: int) -> bool:
    """Return whether some response of an owner has expired and is still there, or items of one."""
    expired = f"SELECT 1 FROM dragoman.responses WHERE {EXPIRED} LIMIT 1"
    unused = f"SELECT 1 FROM dragoman.responses WHERE {UNUSED} LIMIT 1"
    return bool(await find(session, int, expired, owner, now) or await find(session, int, unused, owner))


async def remove_expired(session: Session, owner: str, now: int, limit: int) -> int:
    """Remove some of what has expired; return how many rows."""
    async with change(session, owner) as changes:
        return await _remove_unused(changes, owner, limit) + await _remove_expired(changes, owner, now, limit)


async def remove_surplus(session: Session, owner: str, now: int, bounds: Bounds, limit: int) -> int:
    """Remove at most `limit` responses of an owner that have expired or exceed the bounds; return how many rows."""
    async with change(session, owner) as changes:
        held = await read_totals(session, owner)
        removed = await _remove_unused(changes, owner, limit)
        removed += await _remove_expired(changes, owner, now, limit - removed)
        work = removed
        while work < limit:
            left = held + changes.of(owner)
            if left.responses > bounds.per_owner:
                id = await find(session, str, OLDEST, owner)
            elif left.bytes > bounds.owner_bytes:
                id = await find(session, str, OLDEST_END, owner)
            else:
                return removed
            row = None if id is None else await remove_response(changes, owner, id)
            if row is None:
                return removed
            removed += 1
            work += _measure_work(row)
    return removed


async def remove_from_largest(session: Session, owner: str, total_bytes: int, limit: int) -> int:
    """Remove the oldest responses of an owner, as long as all owners together have more than this; return how many."""
    async with change(session, owner) as changes:
        held = await read_totals(session)
        removed = work = 0
        while work < limit and (held + changes.of(owner)).bytes > total_bytes:
            id = await find(session, str, OLDEST_END, owner)
            row = None if id is None else await remove_response(changes, owner, id)
            if row is None:
                break
            removed += 1
            work += _measure_work(row)
    return removed


async def _remove_expired(changes: Changes, owner: str, now: int, limit: int) -> int:
    removed = work = 0
    statement = f"SELECT id FROM dragoman.responses WHERE {EXPIRED} ORDER BY expires_at, @row LIMIT $3"
    for id in await changes.session.fetch(str, statement, owner, now, max(0, limit)):
        row = await remove_response(changes, owner, id)
        removed += row is not None
        work += 0 if row is None else _measure_work(row)
        if work >= limit:
            break
    return removed


async def _remove_unused(changes: Changes, owner: str, limit: int) -> int:
    """Remove hidden rows that nothing continues any more."""
    statement = f"SELECT id FROM dragoman.responses WHERE {UNUSED} LIMIT $2"
    ids = await changes.session.fetch(str, statement, owner, limit)
    for id in ids:
        await _release_base(changes, owner, await _remove_hidden(changes, owner, id))
    return len(ids)


def _measure_work(row: ResponseRow) -> int:
    return 1 + len(row.digests) // ITEMS_PER_ROW

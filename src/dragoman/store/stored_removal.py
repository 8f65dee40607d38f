"""Removing of responses: those that were deleted, have expired, or exceed the bounds.

Every row is found by an index, whose condition the statements repeat word for word. Many rows are removed with one
statement, because others wait for the owner's lock meanwhile.
"""

# ruff: noqa: S608 - only names of our own columns are put into statements

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dragoman.store.database import Session, fetch_among, find
from dragoman.store.response_rows import (
    DIGEST_BYTES,
    EVENTS_BYTES,
    RESPONSE_BYTES,
    Kept,
    OwnedId,
    RemovalRule,
    ResponseRow,
)
from dragoman.store.stored_items import release
from dragoman.store.stored_totals import Changes, change, read_totals

COLUMNS = ", ".join("input" if name == "context" else name for name in ResponseRow.__struct_fields__)
MAX_CASCADE = 32  # hidden rows of a chain that are removed with the last one that continues them; others follow in time
ITEMS_PER_ROW = 20  # removing this number of items takes as long as removing a response

VISIBLE = "owner = $1 AND removed = 0"
ENDED = "status NOT IN ('queued', 'in_progress')"
EXPIRED = f"{VISIBLE} AND expires_at <= $2 AND {ENDED}"
UNUSED = "owner = $1 AND removed = 1 AND children = 0"
CHOICE = "id, base, length(input) + length(output)"  # of what is to be removed
FIND_EXPIRED = f"SELECT {CHOICE} FROM dragoman.responses WHERE {EXPIRED} ORDER BY expires_at, @row LIMIT $3"
FIND_OLDEST = f"SELECT {CHOICE} FROM dragoman.responses WHERE {VISIBLE} AND {ENDED} ORDER BY expires_at, @row LIMIT $2"
# The oldest of the responses that no other one continues.
FIND_ENDS = (
    f"SELECT {CHOICE} FROM dragoman.responses WHERE {VISIBLE} AND children = 0 AND {ENDED}"
    " ORDER BY expires_at, @row LIMIT $2"
)
FIND_ABOVE = f"""
    WITH RECURSIVE above (id, base, size, depth) AS (
        SELECT {CHOICE}, 1 FROM dragoman.responses WHERE {VISIBLE} AND id = $2 AND children = 1 AND {ENDED}
        UNION ALL
        SELECT link.id, link.base, length(link.input) + length(link.output), above.depth + 1
        FROM above JOIN dragoman.responses AS link ON link.owner = $1 AND link.id = above.base
        WHERE link.removed = 0 AND link.children = 1 AND above.depth < $3
    ) SELECT id, base, size FROM above ORDER BY depth
"""
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
    UPDATE dragoman.responses SET removed = 1, head = $2, settings = $2, model = '', route = '', conversation = '',
        keeper = '', account = ''
    WHERE owner = $1 AND id IN ({among}) RETURNING id
"""

Choice = tuple[str, str, int]  # id, base, and size of the digests


def measure_row(row: ResponseRow) -> int:
    """Return the size of a row as it is stored, without the context that its base holds."""
    return RESPONSE_BYTES + len(row.head) + len(row.context) + len(row.output)


async def remove_responses(changes: Changes, owner: str, ids: Sequence[str]) -> int:
    """Remove responses, their runs and events, and the items that nothing else refers to; return how many there were.

    One that others continue stays as a hidden row.
    """
    session = changes.session
    deleting = (
        f"DELETE FROM dragoman.responses WHERE {VISIBLE} AND children = 0 AND id IN ({{among}}) RETURNING {COLUMNS}"
    )
    deleted = await fetch_among(session, ResponseRow, deleting, ids, owner)
    others = [*{*ids} - {row.id for row in deleted}]
    reading = f"SELECT {COLUMNS} FROM dragoman.responses WHERE {VISIBLE} AND id IN ({{among}})"
    hidden = await fetch_among(session, ResponseRow, reading, others, owner)
    await fetch_among(session, str, HIDE, [row.id for row in hidden], owner, b"")
    for row in (*deleted, *hidden):
        await _remove_run(changes, row)
    size = sum(map(measure_row, deleted)) + sum(len(row.head) for row in hidden)
    changes.count(owner, Kept(responses=-len(deleted) - len(hidden), bytes=-size))
    released = [digest for row in deleted for digest in row.digests]
    released += [digest for row in hidden for digest in {*row.digests} - {*replace(row, settings=b"").digests}]
    released += await _release_bases(changes, owner, [row.base for row in deleted])
    await release(changes, owner, released)
    return len(deleted) + len(hidden)


async def _remove_run(changes: Changes, row: ResponseRow) -> None:
    if not row.mode:
        return
    removing = "DELETE FROM dragoman.background_runs WHERE owner = $1 AND id = $2 RETURNING length(request)"
    for size in await changes.session.fetch(int, removing, row.owner, row.id):
        changes.count(row.owner, Kept(bytes=-size - EVENTS_BYTES))
    await remove_events(changes, row.owned_id)


async def remove_events(changes: Changes, response: OwnedId) -> None:
    """Remove the events of a response."""
    removing = "DELETE FROM dragoman.response_events WHERE owner = $1 AND id = $2 RETURNING length(body)"
    for size in await changes.session.fetch(int, removing, response.owner, response.id):
        changes.count(response.owner, Kept(bytes=-size - EVENTS_BYTES))


async def _release_bases(changes: Changes, owner: str, bases: Iterable[str]) -> list[bytes]:
    """Note that a response less continues each of these; remove those that are hidden and that nothing continues now.

    Return the digests of the items that the removed ones referred to.
    """
    released: list[bytes] = []
    counting = (
        "UPDATE dragoman.responses SET children = children - $2 WHERE owner = $1 AND id IN ({among}) RETURNING id"
    )
    for level in range(MAX_CASCADE + 1):
        numbers = Counter(base for base in bases if base)
        for number in {*numbers.values()}:
            equal = [base for base, count in numbers.items() if count == number]
            await fetch_among(changes.session, str, counting, equal, owner, number)
        if level == MAX_CASCADE or not numbers:
            break
        rows = await _remove_unused(changes, owner, [*numbers])
        released += [digest for row in rows for digest in row.digests]
        bases = [row.base for row in rows]
    return released


async def _remove_unused(changes: Changes, owner: str, ids: Sequence[str]) -> list[ResponseRow]:
    """Remove those of these rows that are hidden and that nothing continues; return them."""
    deleting = f"DELETE FROM dragoman.responses WHERE {UNUSED} AND id IN ({{among}}) RETURNING {COLUMNS}"
    rows = await fetch_among(changes.session, ResponseRow, deleting, ids, owner)
    changes.count(owner, Kept(bytes=-sum(map(measure_row, rows))))
    return rows


async def list_owners_to_clean(session: Session, rule: RemovalRule) -> list[str]:
    """Return the owners that have something expired, or more than they may have."""
    bounds = rule.bounds
    return await session.fetch(str, NEEDS_CLEANING, rule.now, bounds.per_owner, bounds.owner_bytes)


async def has_expired(session: Session, owner: str, now: int) -> bool:
    """Return whether some response of an owner has expired and is still there, or items of one."""
    expired = f"SELECT 1 FROM dragoman.responses WHERE {EXPIRED} LIMIT 1"
    unused = f"SELECT 1 FROM dragoman.responses WHERE {UNUSED} LIMIT 1"
    return bool(await find(session, int, expired, owner, now) or await find(session, int, unused, owner))


async def remove_expired(session: Session, owner: str, now: int, limit: int) -> int:
    """Remove some of what has expired; return how many rows."""
    async with change(session, owner) as changes:
        return await _remove_expired(changes, owner, now, limit)


async def _remove_expired(changes: Changes, owner: str, now: int, limit: int) -> int:
    unused = await changes.session.fetch(
        _make_choice, f"SELECT {CHOICE} FROM dragoman.responses WHERE {UNUSED} LIMIT $2", owner, limit
    )
    rows = await _remove_unused(changes, owner, _take(unused, limit))
    released = [digest for row in rows for digest in row.digests]
    released += await _release_bases(changes, owner, [row.base for row in rows])
    await release(changes, owner, released)
    expired = await changes.session.fetch(_make_choice, FIND_EXPIRED, owner, now, limit - len(rows))
    return len(rows) + await remove_responses(changes, owner, _take(expired, limit - len(rows)))


async def remove_surplus(session: Session, owner: str, rule: RemovalRule, limit: int) -> int:
    """Remove at most `limit` responses of an owner that have expired or exceed the bounds; return how many rows."""
    bounds = rule.bounds
    async with change(session, owner) as changes:
        before = await read_totals(session, owner)
        removed = await _remove_expired(changes, owner, rule.now, limit)
        held = before + changes.of(owner)
        if removed < limit and held.responses > bounds.per_owner:
            most = min(limit - removed, held.responses - bounds.per_owner)
            oldest = await session.fetch(_make_choice, FIND_OLDEST, owner, most)
            removed += await remove_responses(changes, owner, _take(oldest, most))
            held = before + changes.of(owner)
        if removed < limit and held.bytes > bounds.owner_bytes:
            most = _estimate_count(held, held.bytes - bounds.owner_bytes)
            removed += await _remove_ends(changes, owner, min(most, limit - removed))
    return removed


async def remove_from_largest(session: Session, owner: str, total_bytes: int, limit: int) -> int:
    """Remove the oldest responses of an owner if all owners together have more than this; return how many."""
    async with change(session, owner) as changes:
        surplus = (await read_totals(session)).bytes - total_bytes
        if surplus <= 0:
            return 0
        most = _estimate_count(await read_totals(session, owner), surplus)
        return await _remove_ends(changes, owner, min(most, limit))


def _estimate_count(held: Kept, surplus: int) -> int:
    """Return how many responses of average size make up the surplus."""
    return -(-surplus // max(1, held.bytes // held.responses)) if held.responses > 0 else 0


async def _remove_ends(changes: Changes, owner: str, most: int) -> int:
    """Remove at most `most` responses, from the end of the chain that was left longest.

    What continues a response is younger than it, so the other chains stay whole.
    """
    if most <= 0:
        return 0
    chosen: list[Choice] = []
    for end in await changes.session.fetch(_make_choice, FIND_ENDS, owner, most):
        chosen.append(end)
        _, base, _ = end
        if base and len(chosen) < most:
            chosen += await changes.session.fetch(_make_choice, FIND_ABOVE, owner, base, most)
        if len(chosen) >= most:
            break
    return await remove_responses(changes, owner, _take(chosen, most))


def _take(chosen: Sequence[Choice], most: int) -> list[str]:
    """Return the first ids that can be removed in the time of `most` small responses."""
    taken: list[str] = []
    work = 0
    for id, _, size in chosen:
        if work >= most:
            break
        taken.append(id)
        work += 1 + size // (DIGEST_BYTES * ITEMS_PER_ROW)
    return taken


def _make_choice(id: str, base: str, size: int) -> Choice:
    return id, base, size

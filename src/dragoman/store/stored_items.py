"""Items of responses and conversations: stored once per owner, and removed with the last reference to them.

Whoever changes them has locked their owner.
"""

# ruff: noqa: S608 - only names of our own columns are put into statements

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from dragoman.store.database import Session, batched, build_insert, fetch_among, insert
from dragoman.store.response_rows import ITEM_BYTES, ItemRow, Kept
from dragoman.store.stored_totals import Changes

ITEM = "digest, id, body, hidden"
SIZE = f"length(body) + coalesce(length(hidden), 0) + {ITEM_BYTES}"  # as ItemRow.stored_size
NEW_ITEMS = "ON CONFLICT (owner, digest) DO NOTHING RETURNING owner, digest"
Key = tuple[str, bytes]  # owner and digest


async def add_items(changes: Changes, owner: str, items: Iterable[ItemRow]) -> None:
    """Add the items that are not stored yet."""
    await insert_items(changes, [(owner, item) for item in items])


async def insert_items(changes: Changes, items: Sequence[tuple[str, ItemRow]]) -> None:
    """Add the items of several owners that are not stored yet."""
    by_key = {(owner, item.digest): item for owner, item in items}
    rows = [(owner, digest, item.id, item.body, item.hidden) for (owner, digest), item in by_key.items()]
    for batch in batched(rows):
        statement = build_insert(f"dragoman.response_items (owner, {ITEM})", len(batch), 5, NEW_ITEMS)
        for owner, digest in await changes.session.fetch(_make_key, statement, *chain.from_iterable(batch)):
            changes.count(owner, Kept(items=1, bytes=by_key[owner, digest].stored_size))


async def load_items(session: Session, owner: str, digests: Sequence[bytes]) -> dict[bytes, ItemRow]:
    statement = f"SELECT {ITEM} FROM dragoman.response_items WHERE owner = $1 AND digest IN ({{among}})"
    return {item.digest: item for item in await fetch_among(session, ItemRow, statement, digests, owner)}


async def measure_items(session: Session, owner: str, digests: Sequence[bytes]) -> dict[bytes, int]:
    """Return the stored sizes of items, by digest."""
    statement = f"SELECT digest, {SIZE} FROM dragoman.response_items WHERE owner = $1 AND digest IN ({{among}})"
    return dict(await fetch_among(session, _make_count, statement, digests, owner))


async def add_references(changes: Changes, owner: str, digests: Iterable[bytes]) -> None:
    await count_references(changes, ((owner, digest) for digest in digests))


async def count_references(changes: Changes, keys: Iterable[Key]) -> None:
    """Count one more reference to each of these items."""
    rows = [(owner, digest, number) for (owner, digest), number in Counter(keys).items()]
    into = "dragoman.item_references AS known (owner, digest, number)"
    end = "ON CONFLICT (owner, digest) DO UPDATE SET number = known.number + excluded.number"
    await insert(changes.session, into, rows, end)


async def release(changes: Changes, owner: str, digests: Iterable[bytes]) -> None:
    """Remove one reference to each of these items, and the items that have none left."""
    by_number: dict[int, list[bytes]] = {}
    for digest, number in Counter(digests).items():
        by_number.setdefault(number, []).append(digest)
    unused: list[bytes] = []
    counting = (
        "UPDATE dragoman.item_references SET number = number - $2 WHERE owner = $1 AND digest IN ({among})"
        " RETURNING digest, number"
    )
    for number, equal in by_number.items():
        counted = await fetch_among(changes.session, _make_count, counting, equal, owner, number)
        unused += [digest for digest, left in counted if left <= 0]
    forgetting = "DELETE FROM dragoman.item_references WHERE owner = $1 AND digest IN ({among}) RETURNING number"
    await fetch_among(changes.session, int, forgetting, unused, owner)
    removing = f"DELETE FROM dragoman.response_items WHERE owner = $1 AND digest IN ({{among}}) RETURNING {SIZE}"
    for size in await fetch_among(changes.session, int, removing, unused, owner):
        changes.count(owner, Kept(items=-1, bytes=-size))


def _make_key(owner: str, digest: bytes) -> Key:
    return owner, digest


def _make_count(digest: bytes, number: int) -> tuple[bytes, int]:
    return digest, number

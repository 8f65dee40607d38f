"""Items of responses and conversations: stored once per owner, and removed with the last reference to them.

Whoever changes them has locked their owner.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from dragoman.store.database import Session, batched, fetch_among, insert, list_places
from dragoman.store.response_rows import ItemRow

ITEM = "digest, id, body, hidden"
Key = tuple[str, bytes]  # owner and digest


async def insert_items(session: Session, items: Sequence[tuple[str, ItemRow]]) -> dict[Key, int]:
    """Add the items of several owners that are not stored yet; return the sizes of those, by owner and digest."""
    by_key = {(owner, item.digest): item for owner, item in items}
    sizes: dict[Key, int] = {}
    for batch in batched(list(by_key.items())):
        places = ", ".join(f"({list_places(5, 1 + at * 5)})" for at in range(len(batch)))
        statement = (
            f"INSERT INTO dragoman.response_items (owner, {ITEM}) VALUES {places}"  # noqa: S608
            " ON CONFLICT (owner, digest) DO NOTHING RETURNING owner, digest"
        )
        values = [
            value for (owner, digest), item in batch for value in (owner, digest, item.id, item.body, item.hidden)
        ]
        for key in await session.fetch(_make_key, statement, *values):
            sizes[key] = by_key[key].size
    return sizes


async def add_items(session: Session, owner: str, items: Sequence[ItemRow]) -> int:
    """Add the items that are not stored yet; return their size."""
    return sum((await insert_items(session, [(owner, item) for item in items])).values())


async def load_items(session: Session, owner: str, digests: Sequence[bytes]) -> dict[bytes, ItemRow]:
    statement = f"SELECT {ITEM} FROM dragoman.response_items WHERE owner = $1 AND digest IN ({{among}})"  # noqa: S608
    return {item.digest: item for item in await fetch_among(session, ItemRow, statement, digests, owner)}


async def add_references(session: Session, owner: str, digests: Iterable[bytes]) -> None:
    await count_references(session, ((owner, digest) for digest in digests))


async def count_references(session: Session, keys: Iterable[Key]) -> None:
    """Count one more reference to each of these items."""
    rows = [(owner, digest, number) for (owner, digest), number in Counter(keys).items()]
    into = "dragoman.item_references AS known (owner, digest, number)"
    end = "ON CONFLICT (owner, digest) DO UPDATE SET number = known.number + excluded.number"
    await insert(session, into, rows, end)


async def release(session: Session, owner: str, digests: Iterable[bytes]) -> None:
    """Remove one reference to each of these items, and the items that have none left."""
    by_number: dict[int, list[bytes]] = {}
    for digest, number in Counter(digests).items():
        by_number.setdefault(number, []).append(digest)
    unused: list[bytes] = []
    statement = (
        "UPDATE dragoman.item_references SET number = number - $2 WHERE owner = $1 AND digest IN ({among})"
        " RETURNING digest, number"
    )
    for number, equal in by_number.items():
        counted = await fetch_among(session, _make_count, statement, equal, owner, number)
        unused += [digest for digest, left in counted if left <= 0]
    for table in ("item_references", "response_items"):
        removing = f"DELETE FROM dragoman.{table} WHERE owner = $1 AND digest IN ({{among}}) RETURNING digest"  # noqa: S608
        await fetch_among(session, bytes, removing, unused, owner)


def _make_key(owner: str, digest: bytes) -> Key:
    return owner, digest


def _make_count(digest: bytes, number: int) -> tuple[bytes, int]:
    return digest, number

"""How many responses, conversations, items and bytes each owner has, counted where rows are added and removed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import astuple, fields

from dragoman.store.database import Session, find, insert
from dragoman.store.response_rows import Kept, Room, StorageBounds

NAMES = tuple(field.name for field in fields(Kept))
COLUMNS = ", ".join(NAMES)
ADD = "ON CONFLICT (owner) DO UPDATE SET " + ", ".join(f"{name} = held.{name} + excluded.{name}" for name in NAMES)
SUMS = ", ".join(f"coalesce(sum({name}), 0)::bigint" for name in NAMES)
NOTHING = Kept()


class Changes:
    """A session, and what is added and removed with it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._by_owner: dict[str, Kept] = {}

    def count(self, owner: str, change: Kept) -> None:
        self._by_owner[owner] = self.of(owner) + change

    def of(self, owner: str) -> Kept:
        return self._by_owner.get(owner, NOTHING)

    @property
    def added_bytes(self) -> int:
        return sum(max(0, change.bytes) for change in self._by_owner.values())

    async def write(self) -> None:
        # In one order, so that two transactions never wait for each other.
        changed = sorted((owner, change) for owner, change in self._by_owner.items() if change != NOTHING)
        rows = [(owner, *astuple(change)) for owner, change in changed]
        await insert(self.session, f"dragoman.stored_totals AS held (owner, {COLUMNS})", rows, ADD)


@asynccontextmanager
async def change(session: Session, *owners: str) -> AsyncIterator[Changes]:
    """Lock owners, and write the changes of the totals at the end."""
    for owner in sorted({*owners}):
        await session.lock(owner)
    changes = Changes(session)
    yield changes
    await changes.write()


async def read_totals(session: Session, owner: str | None = None) -> Kept:
    """Return how much is stored, of one owner or of all."""
    statement = f"SELECT {SUMS} FROM dragoman.stored_totals WHERE $1::text IS NULL OR owner = $1"  # noqa: S608
    return await find(session, Kept, statement, owner) or NOTHING


async def find_room(session: Session, owner: str, more: Kept, bounds: StorageBounds) -> Room:
    """Return whether an owner's conversations may grow by this."""
    held = await read_totals(session, owner)
    if more.conversations and held.conversations + more.conversations > bounds.per_owner:
        return Room.TOO_MANY
    if held.conversation_bytes + more.conversation_bytes > bounds.owner_bytes:
        return Room.TOO_LARGE
    if (await read_totals(session)).conversation_bytes + more.conversation_bytes > bounds.total_bytes:
        return Room.FULL
    return Room.FREE

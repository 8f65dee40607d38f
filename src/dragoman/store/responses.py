"""Stored responses and conversations."""

# ruff: noqa: S608 - only names of our own columns are put into statements

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import astuple, fields

from dragoman.net.tasks import spawn
from dragoman.store.database import Database, Part, Session, StoreError, fetch_among, find, insert, reads, writes
from dragoman.store.response_rows import (
    Bounds,
    ConversationLock,
    ConversationRow,
    ItemRow,
    Kept,
    ResponseRow,
)
from dragoman.store.stored_items import (
    ITEM,
    add_items,
    add_references,
    count_references,
    insert_items,
    load_items,
    release,
)

COLUMNS = ", ".join(field.name for field in fields(ResponseRow))
MAX_SAVED_AT_ONCE = 64
OVER_BOUNDS = """
    SELECT owner, id FROM (
        SELECT owner, id, created_at, expires_at,
            row_number() OVER (PARTITION BY owner ORDER BY created_at DESC, @row DESC) AS number,
            sum(bytes) OVER (PARTITION BY owner ORDER BY created_at DESC, @row DESC) AS owner_bytes,
            sum(bytes) OVER (ORDER BY created_at DESC, @row DESC) AS total_bytes
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


class Save(Struct, frozen=True):
    """A response to save with its items."""

    row: ResponseRow
    items: Sequence[ItemRow]
    appended: Sequence[bytes] = ()  # digests of items that its conversation grows by


class Responses(Part):
    """Stored responses and conversations.

    Every operation names its owner first and may raise StoreError. What belongs to another owner is never found,
    changed or removed.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._batch = SaveBatch(database)

    async def save_response(self, row: ResponseRow, items: Sequence[ItemRow], appended: Sequence[bytes] = ()) -> bool:
        """Add a response with its items in one transaction; False if one with its id exists already.

        The items with the digests `appended` are added to the conversation that the row names, if that still exists.
        """
        return await self._batch.save(Save(row, items, appended))

    @writes
    async def add_output(self, session: Session, owner: str, id: str, items: Sequence[ItemRow]) -> None:
        """Add the items of a response that was saved without any; nothing happens if it is gone."""
        await session.lock(owner)
        digests = list(dict.fromkeys(item.digest for item in items))
        statement = "UPDATE dragoman.responses SET output = $3 WHERE owner = $1 AND id = $2 AND length(output) = 0"
        if await session.execute(statement, owner, id, b"".join(digests)):
            await add_items(session, owner, items)
            await add_references(session, owner, digests)

    @reads
    async def find_response(self, session: Session, owner: str, id: str, now: int) -> ResponseRow | None:
        """Return a response that has not expired."""
        statement = f"SELECT {COLUMNS} FROM dragoman.responses WHERE owner = $1 AND id = $2 AND expires_at > $3"
        return await find(session, ResponseRow, statement, owner, id, now)

    @writes
    async def delete_response(self, session: Session, owner: str, id: str) -> bool:
        """Remove a response and the items that nothing else refers to; return whether it existed."""
        await session.lock(owner)
        return await remove_response(session, owner, id)

    @reads
    async def load_items(self, session: Session, owner: str, digests: Sequence[bytes]) -> dict[bytes, ItemRow]:
        """Return items by digest."""
        return await load_items(session, owner, digests)

    @reads
    async def find_items(self, session: Session, owner: str, ids: Sequence[str]) -> dict[str, ItemRow]:
        """Return items by their own id; the newest of several with one id."""
        statement = (
            f"SELECT {ITEM} FROM dragoman.response_items WHERE owner = $1 AND id IN ({{among}}) AND id <> ''"
            " ORDER BY @row"
        )
        return {item.id: item for item in await fetch_among(session, ItemRow, statement, ids, owner)}

    @reads
    async def list_responses(
        self, session: Session, owner: str | None, limit: int, now: int
    ) -> tuple[ResponseRow, ...]:
        """Return the newest responses, of one owner or of all."""
        statement = (
            f"SELECT {COLUMNS} FROM dragoman.responses WHERE ($1::text IS NULL OR owner = $1) AND expires_at > $2"
            " ORDER BY created_at DESC, @row DESC LIMIT $3"
        )
        return tuple(await session.fetch(ResponseRow, statement, owner, now, limit))

    @reads
    async def measure(self, session: Session, owner: str | None = None) -> Kept:
        """Return how much is stored, of one owner or of all."""
        [kept] = await session.fetch(Kept, MEASURE, owner)
        return kept

    @writes
    async def remove_responses(self, session: Session, now: int, bounds: Bounds, limit: int) -> int:
        """Remove at most `limit` responses that have expired or exceed the bounds, oldest first; return how many."""
        values = (now, bounds.per_owner, bounds.owner_bytes, bounds.total_bytes, limit)
        old = await session.fetch(_make_pair, OVER_BOUNDS, *values)
        for owner in sorted({owner for owner, _ in old}):
            await session.lock(owner)
        return sum([await remove_response(session, owner, id) for owner, id in old])

    @writes
    async def add_conversation(self, session: Session, row: ConversationRow, items: Sequence[ItemRow]) -> None:
        """Add a conversation with its first items."""
        await session.lock(row.owner)
        await insert(session, "dragoman.conversations (owner, id, created_at, metadata)", [astuple(row)])
        await extend_conversation(session, row.owner, row.id, items)

    @reads
    async def find_conversation(self, session: Session, owner: str, id: str) -> ConversationRow | None:
        statement = "SELECT owner, id, created_at, metadata FROM dragoman.conversations WHERE owner = $1 AND id = $2"
        return await find(session, ConversationRow, statement, owner, id)

    @writes
    async def set_metadata(self, session: Session, owner: str, id: str, metadata: bytes) -> bool:
        """Replace a conversation's metadata; return whether it exists."""
        statement = "UPDATE dragoman.conversations SET metadata = $3 WHERE owner = $1 AND id = $2"
        return bool(await session.execute(statement, owner, id, metadata))

    @writes
    async def delete_conversation(self, session: Session, owner: str, id: str) -> bool:
        """Remove a conversation, not the responses that were made in it; return whether it existed."""
        await session.lock(owner)
        removing = "DELETE FROM dragoman.conversation_items WHERE owner = $1 AND conversation = $2 RETURNING digest"
        await release(session, owner, await session.fetch(bytes, removing, owner, id))
        return bool(await session.execute("DELETE FROM dragoman.conversations WHERE owner = $1 AND id = $2", owner, id))

    @writes
    async def append_items(self, session: Session, owner: str, conversation: str, items: Sequence[ItemRow]) -> bool:
        """Add items at the end of a conversation; return whether it exists."""
        await session.lock(owner)
        if not await has_conversation(session, owner, conversation):
            return False
        await extend_conversation(session, owner, conversation, items)
        return True

    @reads
    async def list_conversation_items(self, session: Session, owner: str, conversation: str) -> tuple[ItemRow, ...]:
        """Return the items of a conversation in order."""
        statement = (
            f"SELECT {ITEM} FROM dragoman.conversation_items AS member"
            " JOIN dragoman.response_items USING (owner, digest)"
            " WHERE owner = $1 AND conversation = $2 ORDER BY member.place"
        )
        return tuple(await session.fetch(ItemRow, statement, owner, conversation))

    @writes
    async def delete_item(self, session: Session, owner: str, conversation: str, item: str) -> bool:
        """Remove an item from a conversation, by its own id; return whether it was in it."""
        await session.lock(owner)
        removing = (
            "DELETE FROM dragoman.conversation_items WHERE owner = $1 AND conversation = $2 AND digest IN"
            " (SELECT digest FROM dragoman.response_items WHERE owner = $1 AND id = $3 AND id <> '') RETURNING digest"
        )
        removed = await session.fetch(bytes, removing, owner, conversation, item)
        await release(session, owner, removed)
        return bool(removed)

    @writes
    async def lock_conversation(
        self, session: Session, owner: str, conversation: str, lock: ConversationLock, now: int
    ) -> bool:
        """Take the lock, or extend it if the token is its own; False if another holds it.

        A background response of the conversation that has not ended holds it too.
        """
        statement = (
            "UPDATE dragoman.conversations SET lock_token = $3, lock_until = $4 WHERE owner = $1 AND id = $2"
            " AND (lock_until <= $5 OR lock_token = $3)"
            " AND NOT EXISTS (SELECT 1 FROM dragoman.background_runs WHERE owner = $1 AND conversation = $2)"
        )
        return bool(await session.execute(statement, owner, conversation, lock.token, lock.until, now))

    @writes
    async def unlock_conversation(self, session: Session, owner: str, conversation: str, token: str) -> None:
        """Release the lock if this token holds it."""
        statement = "UPDATE dragoman.conversations SET lock_until = 0 WHERE owner = $1 AND id = $2 AND lock_token = $3"
        await session.execute(statement, owner, conversation, token)


class SaveBatch:
    """Saves responses: those that wait while others are saved have one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[tuple[Save, asyncio.Future[bool]]] = []
        self._is_saving = False

    async def save(self, save: Save) -> bool:
        """Save a response; return whether there was none with its id. Raises StoreError."""
        saved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((save, saved))
        if not self._is_saving:
            self._is_saving = True
            spawn(self._save_waiting(), name="stored responses")
        return await saved

    async def _save_waiting(self) -> None:
        try:
            while self._waiting:
                batch = self._waiting[:MAX_SAVED_AT_ONCE]
                del self._waiting[:MAX_SAVED_AT_ONCE]
                await self._save(batch)
        finally:
            self._is_saving = False

    async def _save(self, batch: Sequence[tuple[Save, "asyncio.Future[bool]"]]) -> None:
        saves = [save for save, _ in batch]
        with suppress(StoreError):  # then each is saved by itself: one whose id is taken must not harm the others
            await self._database.write(lambda session: save_responses(session, saves))
            for _, saved in batch:
                _settle(saved, True)
            return
        for save, saved in batch:
            try:
                _settle(saved, await self._database.write(partial(save_response, save=save)))
            except StoreError as error:
                _settle(saved, error)


def _settle(saved: "asyncio.Future[bool]", result: bool | StoreError) -> None:
    if saved.done():  # its caller no longer waits
        return
    if isinstance(result, StoreError):
        saved.set_exception(result)
    else:
        saved.set_result(result)


async def save_responses(session: Session, saves: Sequence[Save]) -> None:
    """Save responses of any owners. Raises NotUnique if there is one with the same id."""
    for owner in sorted({save.row.owner for save in saves}):
        await session.lock(owner)
    sizes = await insert_items(session, [(save.row.owner, item) for save in saves for item in save.items])
    rows = []
    for save in saves:  # items that several of them have are part of the size of the first
        owner, size = save.row.owner, len(save.row.head) + len(save.row.context)
        rows.append((*astuple(save.row), size + sum(sizes.pop((owner, item.digest), 0) for item in save.items)))
    await insert(session, f"dragoman.responses ({COLUMNS}, bytes)", rows)
    await count_references(session, [(save.row.owner, digest) for save in saves for digest in save.row.digests])
    for save in saves:
        if save.appended and await has_conversation(session, save.row.owner, save.row.conversation):
            await extend_conversation(session, save.row.owner, save.row.conversation, (), save.appended)


async def save_response(session: Session, save: Save) -> bool:
    """Save one response; return whether there was none with its id."""
    await session.lock(save.row.owner)
    known = "SELECT 1 FROM dragoman.responses WHERE owner = $1 AND id = $2"
    if await find(session, int, known, save.row.owner, save.row.id):
        return False
    await save_responses(session, [save])
    return True


async def remove_response(session: Session, owner: str, id: str) -> bool:
    """Remove a response, its run and its events, and the items that nothing else refers to."""
    statement = f"DELETE FROM dragoman.responses WHERE owner = $1 AND id = $2 RETURNING {COLUMNS}"
    row = await find(session, ResponseRow, statement, owner, id)
    if row is None:
        return False
    if row.mode:
        await session.execute("DELETE FROM dragoman.background_runs WHERE owner = $1 AND id = $2", owner, id)
        await session.execute("DELETE FROM dragoman.response_events WHERE owner = $1 AND id = $2", owner, id)
    await release(session, owner, row.digests)
    return True


async def has_conversation(session: Session, owner: str, id: str) -> bool:
    statement = "SELECT 1 FROM dragoman.conversations WHERE owner = $1 AND id = $2"
    return await find(session, int, statement, owner, id) is not None


async def extend_conversation(
    session: Session, owner: str, conversation: str, items: Sequence[ItemRow], digests: Sequence[bytes] = ()
) -> None:
    """Add items at the end of a conversation: those that are stored already by their digests."""
    await add_items(session, owner, items)
    added = [*digests, *(item.digest for item in items)]
    await add_references(session, owner, added)
    statement = "SELECT coalesce(max(place), 0) FROM dragoman.conversation_items WHERE owner = $1 AND conversation = $2"
    [last] = await session.fetch(int, statement, owner, conversation)
    rows = [(owner, conversation, place, digest) for place, digest in enumerate(added, last + 1)]
    await insert(session, "dragoman.conversation_items (owner, conversation, place, digest)", rows)


def _make_pair(owner: str, id: str) -> tuple[str, str]:
    return owner, id

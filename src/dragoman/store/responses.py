"""Stored responses and conversations."""

# ruff: noqa: S608 - only names of our own columns are put into statements

from collections.abc import Sequence

from msgspec.structs import astuple

from dragoman.store.database import Database, Session, StorePart, fetch_among, find, insert, queries, reads, writes
from dragoman.store.response_rows import (
    CONVERSATION_BYTES,
    DIGEST_BYTES,
    MEMBER_BYTES,
    ConversationRow,
    ItemRow,
    Kept,
    OwnedId,
    RemovalRule,
    ResponseRow,
    Room,
    StorageBounds,
    TimedLock,
    split_digests,
)
from dragoman.store.stored_conversations import COLUMNS as CONVERSATION_COLUMNS
from dragoman.store.stored_conversations import OF_CONVERSATION, find_conversation, link_items, unlink_item
from dragoman.store.stored_items import ITEM, add_items, add_references, load_items, release
from dragoman.store.stored_removal import (
    COLUMNS,
    has_expired,
    list_owners_to_clean,
    remove_expired,
    remove_from_largest,
    remove_responses,
    remove_surplus,
)
from dragoman.store.stored_saving import Save, SaveBatch
from dragoman.store.stored_totals import change, find_room, read_totals

EXPIRED_AT_ONCE = 20
LARGEST = "SELECT owner FROM dragoman.stored_totals WHERE responses > 0 ORDER BY bytes DESC"
CHAIN = """
    WITH RECURSIVE chain (base, input, output, depth) AS (
        SELECT base, input, output, 0 FROM dragoman.responses WHERE owner = $1 AND id = $2
        UNION ALL
        SELECT link.base, link.input, link.output, chain.depth + 1
        FROM chain JOIN dragoman.responses AS link ON link.owner = $1 AND link.id = chain.base
    ) SELECT input, output FROM chain ORDER BY depth DESC
"""


class Responses(StorePart):
    """Stored responses and conversations.

    Every operation names its owner first and may raise StoreError. What belongs to another owner is never found,
    changed or removed.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._batch = SaveBatch(database)

    @property
    def added_bytes(self) -> int:
        """The bytes that this process has saved with responses since its start."""
        return self._batch.added_bytes

    async def save_response(self, row: ResponseRow, items: Sequence[ItemRow], appended: Sequence[bytes] = ()) -> bool:
        """Add a response with its items in one transaction; False if one with its id exists already.

        The items with the digests `appended` are added to the conversation that the row names, if that still exists.
        What the row's base holds is not stored again, if that is still there.
        """
        return await self._batch.save(Save(row, items, appended))

    @writes
    async def add_output(self, session: Session, owner: str, id: str, items: Sequence[ItemRow]) -> None:
        """Add the items of a response that was saved without any; nothing happens if it is gone."""
        digests = list(dict.fromkeys(item.digest for item in items))
        statement = (
            "UPDATE dragoman.responses SET output = $3"
            " WHERE owner = $1 AND id = $2 AND removed = 0 AND children = 0 AND length(output) = 0"
        )
        async with change(session, owner) as changes:
            if await session.execute(statement, owner, id, b"".join(digests)):
                changes.count(owner, Kept(bytes=DIGEST_BYTES * len(digests)))
                await add_items(changes, owner, items)
                await add_references(changes, owner, digests)

    @reads
    async def find_response(self, session: Session, owner: str, id: str, now: int) -> ResponseRow | None:
        """Return a response that has not expired."""
        statement = (
            f"SELECT {COLUMNS} FROM dragoman.responses WHERE owner = $1 AND id = $2 AND removed = 0 AND expires_at > $3"
        )
        return await find(session, ResponseRow, statement, owner, id, now)

    @reads
    async def load_context(self, session: Session, row: ResponseRow) -> tuple[ItemRow | None, ...]:
        """Return the items that a response was generated from, in order; None for what is gone."""
        return await _load(session, row.owner, await _read_context(session, row))

    @reads
    async def load_chain(self, session: Session, row: ResponseRow) -> tuple[ItemRow | None, ...]:
        """Return the items that a response was generated from and consists of, in order; None for what is gone."""
        return await _load(session, row.owner, await _read_context(session, row) + row.output)

    @writes
    async def delete_response(self, session: Session, owner: str, id: str) -> bool:
        """Remove a response and the items that nothing else refers to; return whether it existed."""
        async with change(session, owner) as changes:
            return bool(await remove_responses(changes, owner, [id]))

    @reads
    async def load_items(self, session: Session, owner: str, digests: Sequence[bytes]) -> dict[bytes, ItemRow]:
        """Return items by digest."""
        return await load_items(session, owner, digests)

    async def find_items(self, owner: str, ids: Sequence[str], now: int) -> dict[str, ItemRow]:
        """Return items by their own id; the newest of several with one id.

        An item does not say who refers to it. So what has expired is removed first, with the items that go with it.
        """
        while (found := await self._find_items(owner, ids, now)) is None:
            await self._remove_expired(owner, now)
        return found

    @reads
    async def _find_items(
        self, session: Session, owner: str, ids: Sequence[str], now: int
    ) -> dict[str, ItemRow] | None:
        """Return None if something has expired and is still there."""
        if await has_expired(session, owner, now):
            return None
        statement = (
            f"SELECT {ITEM} FROM dragoman.response_items WHERE owner = $1 AND id IN ({{among}}) AND id <> ''"
            " ORDER BY @row"
        )
        return {item.id: item for item in await fetch_among(session, ItemRow, statement, ids, owner)}

    @writes
    async def _remove_expired(self, session: Session, owner: str, now: int) -> int:
        return await remove_expired(session, owner, now, EXPIRED_AT_ONCE)

    @queries
    async def list_responses(
        self, session: Session, owner: str | None, limit: int, now: int
    ) -> tuple[ResponseRow, ...]:
        """Return the newest responses, of one owner or of all."""
        statement = (
            f"SELECT {COLUMNS} FROM dragoman.responses WHERE ($1::text IS NULL OR owner = $1) AND removed = 0"
            " AND expires_at > $2 ORDER BY created_at DESC, @row DESC LIMIT $3"
        )
        return tuple(await session.fetch(ResponseRow, statement, owner, now, limit))

    @queries
    async def find_of_any_owner(self, session: Session, id: str, now: int) -> tuple[ResponseRow, ...]:
        """Return the responses with this id; an upstream that keeps them may have given one to two owners."""
        owners = await session.fetch(str, "SELECT owner FROM dragoman.responses WHERE id = $1", id)
        statement = (
            f"SELECT {COLUMNS} FROM dragoman.responses WHERE owner = $1 AND id = $2 AND removed = 0 AND expires_at > $3"
        )
        return tuple([row for owner in owners for row in await session.fetch(ResponseRow, statement, owner, id, now)])

    @reads
    async def measure(self, session: Session, owner: str | None = None) -> Kept:
        """Return how much is stored, of one owner or of all."""
        return await read_totals(session, owner)

    async def remove_responses(self, now: int, bounds: StorageBounds, limit: int) -> int:
        """Remove at most `limit` responses that have expired or exceed the bounds; return how many rows.

        One owner is locked at a time. Of an owner with too many responses the oldest are removed; of one with too many
        bytes those that have not been continued for the longest time. If all owners together have too many, the one
        with the most loses some.
        """
        removed = 0
        rule = RemovalRule(now, bounds)
        for owner in await self._list_owners_to_clean(rule):
            removed += await self._remove_surplus(owner, rule, limit - removed)
            if removed >= limit:
                return removed
        if removed or (await self.measure()).bytes <= bounds.total_bytes:
            return removed
        for owner in await self._list_largest():
            removed = await self._remove_from_largest(owner, bounds.total_bytes, limit)
            if removed:
                return removed
        return 0

    @reads
    async def _list_owners_to_clean(self, session: Session, rule: RemovalRule) -> list[str]:
        return await list_owners_to_clean(session, rule)

    @writes
    async def _remove_surplus(self, session: Session, owner: str, rule: RemovalRule, limit: int) -> int:
        return await remove_surplus(session, owner, rule, limit)

    @reads
    async def _list_largest(self, session: Session) -> list[str]:
        return await session.fetch(str, LARGEST)

    @writes
    async def _remove_from_largest(self, session: Session, owner: str, total_bytes: int, limit: int) -> int:
        return await remove_from_largest(session, owner, total_bytes, limit)

    @reads
    async def find_room(self, session: Session, owner: str, bounds: StorageBounds) -> Room:
        """Return whether an owner's conversations may grow."""
        return await find_room(session, owner, Kept(), bounds)

    @writes
    async def add_conversation(
        self, session: Session, row: ConversationRow, items: Sequence[ItemRow], bounds: StorageBounds
    ) -> Room:
        """Add a conversation with its first items, if there is room for it."""
        size = CONVERSATION_BYTES + len(row.metadata)
        async with change(session, row.owner) as changes:
            more = Kept(conversations=1, conversation_bytes=size + _measure(items))
            room = await find_room(session, row.owner, more, bounds)
            if room == Room.FREE:
                into = f"dragoman.conversations ({CONVERSATION_COLUMNS}, bytes)"
                await insert(session, into, [(*astuple(row), size)])
                changes.count(row.owner, Kept(conversations=1, bytes=size, conversation_bytes=size))
                await add_items(changes, row.owner, items)
                await link_items(changes, row, [item.digest for item in items])
        return room

    @reads
    async def find_conversation(self, session: Session, owner: str, id: str) -> ConversationRow | None:
        return await find_conversation(session, owner, id)

    @writes
    async def set_metadata(self, session: Session, owner: str, id: str, metadata: bytes) -> bool:
        """Replace a conversation's metadata; return whether it exists."""
        statement = "UPDATE dragoman.conversations SET metadata = $3, bytes = bytes + $4 WHERE owner = $1 AND id = $2"
        async with change(session, owner) as changes:
            row = await find_conversation(session, owner, id)
            if row is None:
                return False
            more = len(metadata) - len(row.metadata)
            await session.execute(statement, owner, id, metadata, more)
            changes.count(owner, Kept(bytes=more, conversation_bytes=more))
            return True

    @writes
    async def delete_conversation(self, session: Session, owner: str, id: str) -> bool:
        """Remove a conversation, not the responses that were made in it; return whether it existed."""
        deleting = "DELETE FROM dragoman.conversations WHERE owner = $1 AND id = $2 RETURNING bytes, length(metadata)"
        unlinking = f"DELETE FROM dragoman.conversation_items WHERE {OF_CONVERSATION} RETURNING digest"
        async with change(session, owner) as changes:
            sizes = await find(session, _make_sizes, deleting, owner, id)
            if sizes is None:
                return False
            whole, metadata = sizes
            members = await session.fetch(bytes, unlinking, owner, id)
            own = CONVERSATION_BYTES + metadata + MEMBER_BYTES * len(members)
            changes.count(owner, Kept(conversations=-1, bytes=-own, conversation_bytes=-whole))
            await release(changes, owner, members)
            return True

    @writes
    async def append_items(
        self, session: Session, conversation: OwnedId, items: Sequence[ItemRow], bounds: StorageBounds
    ) -> Room | None:
        """Add items at the end of a conversation, if there is room for them; None if there is no such conversation."""
        owner = conversation.owner
        async with change(session, owner) as changes:
            row = await find_conversation(session, owner, conversation.id)
            if row is None:
                return None
            room = await find_room(session, owner, Kept(conversation_bytes=_measure(items)), bounds)
            if room == Room.FREE:
                await add_items(changes, owner, items)
                await link_items(changes, row, [item.digest for item in items])
            return room

    @reads
    async def load_conversation(
        self, session: Session, owner: str, conversation: str
    ) -> tuple[ConversationRow, tuple[ItemRow, ...]] | None:
        """Return a conversation with its items in order. `newest` is empty if it changed meanwhile."""
        before = await find_conversation(session, owner, conversation)
        if before is None:
            return None
        statement = (
            f"SELECT {ITEM} FROM dragoman.conversation_items AS member"
            " JOIN dragoman.response_items USING (owner, digest)"
            f" WHERE {OF_CONVERSATION} ORDER BY member.place"
        )
        items = tuple(await session.fetch(ItemRow, statement, owner, conversation))
        after = await find_conversation(session, owner, conversation)
        is_same = after is not None and after.newest == before.newest
        return before if is_same else ConversationRow(*astuple(before)[:-1]), items

    @writes
    async def delete_item(self, session: Session, owner: str, conversation: str, item: str) -> bool:
        """Remove an item from a conversation, by its own id; return whether it was in it."""
        async with change(session, owner) as changes:
            row = await find_conversation(session, owner, conversation)
            return row is not None and await unlink_item(changes, row, item)

    @writes
    async def lock_conversation(self, session: Session, conversation: OwnedId, lock: TimedLock, now: int) -> bool:
        """Take the lock, or extend it if the token is its own; False if another holds it.

        A background response of the conversation that has not ended holds it too.
        """
        statement = (
            "UPDATE dragoman.conversations SET lock_token = $3, lock_until = $4 WHERE owner = $1 AND id = $2"
            " AND (lock_until <= $5 OR lock_token = $3)"
            " AND NOT EXISTS (SELECT 1 FROM dragoman.background_runs WHERE owner = $1 AND conversation = $2)"
        )
        values = (conversation.owner, conversation.id, lock.token, lock.until, now)
        return bool(await session.execute(statement, *values))

    @writes
    async def unlock_conversation(self, session: Session, conversation: OwnedId, token: str) -> None:
        """Release the lock if this token holds it."""
        statement = "UPDATE dragoman.conversations SET lock_until = 0 WHERE owner = $1 AND id = $2 AND lock_token = $3"
        await session.execute(statement, conversation.owner, conversation.id, token)


async def _read_context(session: Session, row: ResponseRow) -> bytes:
    """Return the digests of the whole context of a response."""
    if not row.base:
        return row.context
    earlier = b"".join(await session.fetch(_join, CHAIN, row.owner, row.base))
    is_whole = len(earlier) == row.input_start * DIGEST_BYTES  # else the response was removed a moment ago
    return (earlier if is_whole else bytes(row.input_start * DIGEST_BYTES)) + row.context


async def _load(session: Session, owner: str, joined: bytes) -> tuple[ItemRow | None, ...]:
    digests = split_digests(joined)
    found = await load_items(session, owner, digests)
    return tuple(map(found.get, digests))


def _measure(items: Sequence[ItemRow]) -> int:
    """Return by how much these items make a conversation larger."""
    return sum(MEMBER_BYTES + item.stored_size for item in items)


def _join(input: bytes, output: bytes) -> bytes:
    return input + output


def _make_sizes(whole: int, metadata: int) -> tuple[int, int]:
    return whole, metadata

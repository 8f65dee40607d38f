"""The items of conversations, in order. Whoever changes them has locked their owner."""

# ruff: noqa: S608 - only names of our own columns are put into statements

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.store.database import Session, find, insert
from dragoman.store.response_rows import DIGEST_BYTES, MEMBER_BYTES, ConversationRow, Kept, ResponseRow
from dragoman.store.stored_items import add_references, measure_items, release
from dragoman.store.stored_totals import Changes

COLUMNS = ", ".join(ConversationRow.__struct_fields__)
OF_CONVERSATION = "owner = $1 AND conversation = $2"


async def find_conversation(session: Session, owner: str, id: str) -> ConversationRow | None:
    statement = f"SELECT {COLUMNS} FROM dragoman.conversations WHERE owner = $1 AND id = $2"
    return await find(session, ConversationRow, statement, owner, id)


async def add_reply(changes: Changes, row: ResponseRow, digests: Sequence[bytes]) -> None:
    """Add the input and the output of a response to its conversation, if that still exists.

    `row` is the response as it is stored.
    """
    found = await find_conversation(changes.session, row.owner, row.conversation)
    if found is None:
        return
    if row.base:
        is_continued = found.newest == row.base
    else:  # it may be the first, or the client has changed the conversation
        statement = f"SELECT digest FROM dragoman.conversation_items WHERE {OF_CONVERSATION} ORDER BY place"
        members = await changes.session.fetch(bytes, statement, row.owner, row.conversation)
        is_continued = b"".join(members) == row.context[: row.input_start * DIGEST_BYTES]
    await link_items(changes, found, digests, newest=row.id if is_continued else "")


async def link_items(changes: Changes, row: ConversationRow, digests: Sequence[bytes], newest: str = "") -> None:
    """Add stored items at the end of a conversation."""
    session, owner = changes.session, row.owner
    await add_references(changes, owner, digests)
    counting = f"SELECT coalesce(max(place), 0) FROM dragoman.conversation_items WHERE {OF_CONVERSATION}"
    [last] = await session.fetch(int, counting, owner, row.id)
    rows = [(owner, row.id, place, digest) for place, digest in enumerate(digests, last + 1)]
    await insert(session, "dragoman.conversation_items (owner, conversation, place, digest)", rows)
    await _resize(changes, replace(row, newest=newest), digests, 1)


async def unlink_item(changes: Changes, row: ConversationRow, item: str) -> bool:
    """Remove the item with this id from a conversation; return whether it was in it."""
    removing = (
        f"DELETE FROM dragoman.conversation_items WHERE {OF_CONVERSATION} AND digest IN"
        " (SELECT digest FROM dragoman.response_items WHERE owner = $1 AND id = $3 AND id <> '') RETURNING digest"
    )
    removed = await changes.session.fetch(bytes, removing, row.owner, row.id, item)
    await _resize(changes, replace(row, newest=""), removed, -1)
    await release(changes, row.owner, removed)
    return bool(removed)


async def _resize(changes: Changes, row: ConversationRow, digests: Sequence[bytes], sign: int) -> None:
    """Count items that were added to a conversation, or removed from it, and store which response is its newest."""
    sizes = await measure_items(changes.session, row.owner, digests)
    size = sign * sum(MEMBER_BYTES + sizes.get(digest, 0) for digest in digests)
    changes.count(row.owner, Kept(bytes=sign * MEMBER_BYTES * len(digests), conversation_bytes=size))
    statement = "UPDATE dragoman.conversations SET bytes = bytes + $3, newest = $4 WHERE owner = $1 AND id = $2"
    await changes.session.execute(statement, row.owner, row.id, size, row.newest)

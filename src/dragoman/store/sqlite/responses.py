"""Stored responses and conversations in SQLite.

A statement releases the interpreter's lock and must get it back from the event loop, which may take longer than the
statement itself. So many rows are written by one statement.
"""

# ruff: noqa: S608 - only names of our own columns are put into queries

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

import apsw
from msgspec import Struct
from msgspec.structs import astuple, fields

from dragoman.net.tasks import spawn
from dragoman.store.response_rows import (
    Bounds,
    ConversationLock,
    ConversationRow,
    ItemRow,
    Kept,
    ResponseRow,
    split_digests,
)
from dragoman.store.sqlite.connection import Runner, has_changed, only_row
from dragoman.store.store import StoreError

COLUMNS = ", ".join(field.name for field in fields(ResponseRow))
ROWS_AT_ONCE = 16
ADD_RESPONSES = f"INSERT INTO responses ({COLUMNS}, bytes) VALUES "
ADD_ITEMS = "INSERT INTO response_items (owner, digest, id, body, hidden) VALUES "
ADD_REFERENCES = "INSERT INTO item_references (owner, digest, number) VALUES "
COUNT_REFERENCES = " ON CONFLICT (owner, digest) DO UPDATE SET number = number + excluded.number"

Values = tuple[str | int | bytes | None, ...]


class Save(Struct, frozen=True):
    """A response to save with its items."""

    row: ResponseRow
    items: Sequence[ItemRow]
    appended: Sequence[bytes] = ()  # digests of items that its conversation grows by


def save_responses(connection: apsw.Connection, saves: Sequence[Save]) -> None:
    """Save responses. Raises apsw.ConstraintError if there is one with the same id."""
    sizes = _insert_items(connection, [(save.row.owner, item) for save in saves for item in save.items])
    rows: list[Values] = []
    for save in saves:  # items that several of them have are part of the size of the first
        owner, size = save.row.owner, len(save.row.head) + len(save.row.context)
        rows.append((*astuple(save.row), size + sum(sizes.pop((owner, item.digest), 0) for item in save.items)))
    _execute(connection, ADD_RESPONSES, rows)
    _count_references(connection, [(save.row.owner, digest) for save in saves for digest in save.row.digests])
    for save in saves:
        if save.appended and has_conversation(connection, save.row.owner, save.row.conversation):
            extend_conversation(connection, save.row.owner, save.row.conversation, (), save.appended)


def save_response(connection: apsw.Connection, save: Save) -> bool:
    """Save one response; return whether there was none with its id."""
    query = "SELECT 1 FROM responses WHERE owner = ? AND id = ?"
    if connection.execute(query, (save.row.owner, save.row.id)).fetchone():
        return False
    save_responses(connection, [save])
    return True


def delete_response(connection: apsw.Connection, owner: str, id: str) -> bool:
    query = f"DELETE FROM responses WHERE owner = ? AND id = ? RETURNING {COLUMNS}"
    found = connection.execute(query, (owner, id)).fetchone()
    if not found:
        return False
    row = ResponseRow(*found)
    if row.mode:
        connection.execute("DELETE FROM background_runs WHERE owner = ? AND id = ?", (owner, id))
        connection.execute("DELETE FROM response_events WHERE owner = ? AND id = ?", (owner, id))
    release(connection, owner, row.digests)
    return True


def load_items(connection: apsw.Connection, owner: str, digests: Sequence[bytes]) -> Iterator[tuple[bytes, ItemRow]]:
    query = "SELECT digest, id, body, hidden FROM response_items WHERE owner = ? AND digest = ?"
    for digest in dict.fromkeys(digests):
        found = connection.execute(query, (owner, digest)).fetchone()
        if found:
            yield digest, ItemRow(*found)


def add_items(connection: apsw.Connection, owner: str, items: Sequence[ItemRow]) -> int:
    """Add the items that are not stored yet; return their size."""
    return sum(_insert_items(connection, [(owner, item) for item in items]).values())


def add_references(connection: apsw.Connection, owner: str, digests: Iterable[bytes]) -> None:
    _count_references(connection, [(owner, digest) for digest in digests])


def _insert_items(connection: apsw.Connection, items: Sequence[tuple[str, ItemRow]]) -> dict[tuple[str, bytes], int]:
    """Add the items that are not stored yet; return their sizes, by owner and digest."""
    by_digest = {(owner, item.digest): item for owner, item in items}
    values = [(owner, digest, item.id, item.body, item.hidden) for (owner, digest), item in by_digest.items()]
    added = _execute(connection, ADD_ITEMS, values, " ON CONFLICT (owner, digest) DO NOTHING RETURNING owner, digest")
    return {key: by_digest[key].size for key in by_digest.keys() & {*added}}


def _count_references(connection: apsw.Connection, digests: Sequence[tuple[str, bytes]]) -> None:
    numbers = Counter(digests)
    values = [(owner, digest, number) for (owner, digest), number in numbers.items()]
    _execute(connection, ADD_REFERENCES, values, COUNT_REFERENCES)


def _execute(
    connection: apsw.Connection, statement: str, rows: Sequence[Values], end: str = ""
) -> list[tuple[object, ...]]:
    """Run a statement with the values of all rows, a few of them at a time; return what it returns."""
    found: list[tuple[object, ...]] = []
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        places = f"({','.join('?' * len(part[0]))})"
        found += connection.execute(statement + ",".join([places] * len(part)) + end, [*chain.from_iterable(part)])
    return found


def release(connection: apsw.Connection, owner: str, digests: Iterable[bytes]) -> None:
    """Remove one reference to each of these items, and the items that have none left."""
    for digest in digests:
        query = "UPDATE item_references SET number = number - 1 WHERE owner = ? AND digest = ? RETURNING number"
        left = connection.execute(query, (owner, digest)).fetchone()
        if left and left[0] == 0:
            connection.execute("DELETE FROM item_references WHERE owner = ? AND digest = ?", (owner, digest))
            connection.execute("DELETE FROM response_items WHERE owner = ? AND digest = ?", (owner, digest))


def has_conversation(connection: apsw.Connection, owner: str, id: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM conversations WHERE owner = ? AND id = ?", (owner, id)).fetchone())


def extend_conversation(
    connection: apsw.Connection,
    owner: str,
    conversation: str,
    items: Sequence[ItemRow],
    digests: Sequence[bytes] = (),
) -> None:
    add_items(connection, owner, items)
    digests = (*digests, *(item.digest for item in items))
    add_references(connection, owner, digests)
    query = "SELECT coalesce(max(place), 0) FROM conversation_items WHERE owner = ? AND conversation = ?"
    [last] = only_row(connection.execute(query, (owner, conversation)))
    connection.executemany(
        "INSERT INTO conversation_items (owner, conversation, place, digest) VALUES (?, ?, ?, ?)",
        [(owner, conversation, place, digest) for place, digest in enumerate(digests, last + 1)],
    )


MAX_SAVED_AT_ONCE = 64
OVER_BOUNDS = """
    SELECT owner, id FROM (
        SELECT owner, id, created_at, expires_at,
            row_number() OVER (PARTITION BY owner ORDER BY created_at DESC, rowid DESC) AS number,
            sum(bytes) OVER (PARTITION BY owner ORDER BY created_at DESC, rowid DESC) AS owner_bytes,
            sum(bytes) OVER (ORDER BY created_at DESC, rowid DESC) AS total_bytes
        FROM responses WHERE status NOT IN ('queued', 'in_progress')
    ) WHERE expires_at <= ?1 OR number > ?2 OR owner_bytes > ?3 OR total_bytes > ?4
    ORDER BY created_at LIMIT ?5
"""


class SaveBatch:
    """Saves responses: those that wait while others are saved have one transaction."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
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
            await self._runner.write(lambda connection: save_responses(connection, saves))
            for _, saved in batch:
                _settle(saved, True)
            return
        for save, saved in batch:
            try:
                _settle(saved, await self._runner.write(partial(save_response, save=save)))
            except StoreError as error:
                _settle(saved, error)


def _settle(saved: "asyncio.Future[bool]", result: bool | StoreError) -> None:
    if saved.done():  # its caller no longer waits
        return
    if isinstance(result, StoreError):
        saved.set_exception(result)
    else:
        saved.set_result(result)


class SqliteResponses:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._batch = SaveBatch(runner)

    async def save_response(self, row: ResponseRow, items: Sequence[ItemRow], appended: Sequence[bytes] = ()) -> bool:
        return await self._batch.save(Save(row, items, appended))

    async def add_output(self, owner: str, id: str, items: Sequence[ItemRow]) -> None:
        query = "UPDATE responses SET output = ? WHERE owner = ? AND id = ? AND output = x''"
        output = b"".join(dict.fromkeys(item.digest for item in items))

        def add(connection: apsw.Connection) -> None:
            if has_changed(connection, query, (output, owner, id)):
                add_items(connection, owner, items)
                add_references(connection, owner, split_digests(output))

        await self._runner.write(add)

    async def find_response(self, owner: str, id: str, now: int) -> ResponseRow | None:
        query = f"SELECT {COLUMNS} FROM responses WHERE owner = ? AND id = ? AND expires_at > ?"

        def find(connection: apsw.Connection) -> ResponseRow | None:
            found = connection.execute(query, (owner, id, now)).fetchone()
            return ResponseRow(*found) if found else None

        return await self._runner.read(find)

    async def delete_response(self, owner: str, id: str) -> bool:
        return await self._runner.write(lambda connection: delete_response(connection, owner, id))

    async def load_items(self, owner: str, digests: Sequence[bytes]) -> dict[bytes, ItemRow]:
        return await self._runner.read(lambda connection: dict(load_items(connection, owner, digests)))

    async def find_items(self, owner: str, ids: Sequence[str]) -> dict[str, ItemRow]:
        query = (
            "SELECT digest, id, body, hidden FROM response_items WHERE owner = ? AND id = ? ORDER BY rowid DESC LIMIT 1"
        )

        def find(connection: apsw.Connection) -> dict[str, ItemRow]:
            found = ((id, connection.execute(query, (owner, id)).fetchone()) for id in ids)
            return {id: ItemRow(*columns) for id, columns in found if columns}

        return await self._runner.read(find)

    async def list_responses(self, owner: str | None, limit: int, now: int) -> tuple[ResponseRow, ...]:
        query = (
            f"SELECT {COLUMNS} FROM responses WHERE (?1 IS NULL OR owner = ?1) AND expires_at > ?2"
            " ORDER BY created_at DESC, rowid DESC LIMIT ?3"
        )

        def find(connection: apsw.Connection) -> tuple[ResponseRow, ...]:
            return tuple(ResponseRow(*found) for found in connection.execute(query, (owner, now, limit)))

        return await self._runner.read(find)

    async def measure(self, owner: str | None = None) -> Kept:
        query = """
            SELECT (SELECT count(*) FROM responses WHERE ?1 IS NULL OR owner = ?1),
                (SELECT count(*) FROM conversations WHERE ?1 IS NULL OR owner = ?1),
                (SELECT count(*) FROM response_items WHERE ?1 IS NULL OR owner = ?1),
                (SELECT coalesce(sum(length(body) + coalesce(length(hidden), 0)), 0) FROM response_items
                    WHERE ?1 IS NULL OR owner = ?1)
        """
        return await self._runner.read(lambda connection: Kept(*only_row(connection.execute(query, (owner,)))))

    async def remove_responses(self, now: int, bounds: Bounds, limit: int) -> int:
        def remove(connection: apsw.Connection) -> int:
            values = (now, bounds.per_owner, bounds.owner_bytes, bounds.total_bytes, limit)
            old = list(connection.execute(OVER_BOUNDS, values))
            for owner, id in old:
                delete_response(connection, str(owner), str(id))
            return len(old)

        return await self._runner.write(remove)

    async def add_conversation(self, row: ConversationRow, items: Sequence[ItemRow]) -> None:
        def add(connection: apsw.Connection) -> None:
            connection.execute(
                "INSERT INTO conversations (owner, id, created_at, metadata) VALUES (?, ?, ?, ?)", astuple(row)
            )
            extend_conversation(connection, row.owner, row.id, items)

        await self._runner.write(add)

    async def find_conversation(self, owner: str, id: str) -> ConversationRow | None:
        query = "SELECT owner, id, created_at, metadata FROM conversations WHERE owner = ? AND id = ?"

        def find(connection: apsw.Connection) -> ConversationRow | None:
            found = connection.execute(query, (owner, id)).fetchone()
            return ConversationRow(*found) if found else None

        return await self._runner.read(find)

    async def set_metadata(self, owner: str, id: str, metadata: bytes) -> bool:
        query = "UPDATE conversations SET metadata = ? WHERE owner = ? AND id = ?"
        return await self._runner.write(lambda connection: has_changed(connection, query, (metadata, owner, id)))

    async def delete_conversation(self, owner: str, id: str) -> bool:
        def delete(connection: apsw.Connection) -> bool:
            removing = "DELETE FROM conversation_items WHERE owner = ? AND conversation = ? RETURNING digest"
            release(connection, owner, [bytes(found[0]) for found in connection.execute(removing, (owner, id))])
            return has_changed(connection, "DELETE FROM conversations WHERE owner = ? AND id = ?", (owner, id))

        return await self._runner.write(delete)

    async def append_items(self, owner: str, conversation: str, items: Sequence[ItemRow]) -> bool:
        def append(connection: apsw.Connection) -> bool:
            if not has_conversation(connection, owner, conversation):
                return False
            extend_conversation(connection, owner, conversation, items)
            return True

        return await self._runner.write(append)

    async def list_conversation_items(self, owner: str, conversation: str) -> tuple[ItemRow, ...]:
        query = (
            "SELECT digest, id, body, hidden FROM conversation_items JOIN response_items USING (owner, digest)"
            " WHERE owner = ? AND conversation = ? ORDER BY place"
        )

        def find(connection: apsw.Connection) -> tuple[ItemRow, ...]:
            return tuple(ItemRow(*found) for found in connection.execute(query, (owner, conversation)))

        return await self._runner.read(find)

    async def delete_item(self, owner: str, conversation: str, item: str) -> bool:
        removing = (
            "DELETE FROM conversation_items WHERE owner = ?1 AND conversation = ?2 AND digest IN"
            " (SELECT digest FROM response_items WHERE owner = ?1 AND id = ?3) RETURNING digest"
        )

        def delete(connection: apsw.Connection) -> bool:
            removed = [bytes(found[0]) for found in connection.execute(removing, (owner, conversation, item))]
            release(connection, owner, removed)
            return bool(removed)

        return await self._runner.write(delete)

    async def lock_conversation(self, owner: str, conversation: str, lock: ConversationLock, now: int) -> bool:
        query = (
            "UPDATE conversations SET lock_token = ?, lock_until = ? WHERE owner = ? AND id = ?"
            " AND (lock_until <= ? OR lock_token = ?)"
            " AND NOT EXISTS (SELECT 1 FROM background_runs WHERE owner = ? AND conversation = ?)"
        )
        values = (lock.token, lock.until, owner, conversation, now, lock.token, owner, conversation)
        return await self._runner.write(lambda connection: has_changed(connection, query, values))

    async def unlock_conversation(self, owner: str, conversation: str, token: str) -> None:
        query = "UPDATE conversations SET lock_until = 0 WHERE owner = ? AND id = ? AND lock_token = ?"
        await self._runner.write(lambda connection: has_changed(connection, query, (owner, conversation, token)))

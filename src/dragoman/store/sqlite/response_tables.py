"""The tables of stored responses in SQLite.

A statement releases the interpreter's lock and must get it back from the event loop, which may take longer than the
statement itself. So many rows are written by one statement.
"""

# ruff: noqa: S608 - only names of our own columns are put into queries

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import apsw
from msgspec import Struct
from msgspec.structs import astuple, fields

from dragoman.store.response_rows import ItemRow, ResponseRow

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


def refer(connection: apsw.Connection, owner: str, digests: Iterable[bytes]) -> None:
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
    refer(connection, owner, digests)
    query = "SELECT coalesce(max(place), 0) FROM conversation_items WHERE owner = ? AND conversation = ?"
    [last] = only_row(connection.execute(query, (owner, conversation)))
    connection.executemany(
        "INSERT INTO conversation_items (owner, conversation, place, digest) VALUES (?, ?, ?, ?)",
        [(owner, conversation, place, digest) for place, digest in enumerate(digests, last + 1)],
    )


def only_row(rows: Iterable[tuple[object, ...]]) -> tuple[int, ...]:
    [row] = rows
    return tuple(count for count in row if isinstance(count, int))


def has_changed(connection: apsw.Connection, query: str, values: tuple[str | int | bytes, ...]) -> bool:
    connection.execute(query, values)
    return connection.changes() > 0

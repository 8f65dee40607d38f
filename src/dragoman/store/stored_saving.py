"""Saving of responses: those that end together in one transaction."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import astuple, replace

from dragoman.net.tasks import spawn
from dragoman.store.database import Database, Session, StoreError, find, insert
from dragoman.store.response_rows import DIGEST_BYTES, ItemRow, Kept, ResponseRow
from dragoman.store.stored_conversations import add_reply
from dragoman.store.stored_items import count_references, insert_items
from dragoman.store.stored_removal import COLUMNS, ENDED, measure_row
from dragoman.store.stored_totals import change

MAX_SAVED_AT_ONCE = 64
# A base that was removed meanwhile still holds its items, as long as other responses continue it.
HOLD_BASE = f"""
    UPDATE dragoman.responses SET children = children + 1 WHERE owner = $1 AND id = $2 AND {ENDED}
    AND CASE WHEN base = '' THEN 0 ELSE input_start END + (length(input) + length(output)) / {DIGEST_BYTES} = $3
"""  # noqa: S608


class Save(Struct, frozen=True):
    """A response to save with its items."""

    row: ResponseRow
    items: Sequence[ItemRow]
    appended: Sequence[bytes] = ()  # digests of items that its conversation grows by


class SaveBatch:
    """Saves responses: those that wait while others are saved have one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[tuple[Save, asyncio.Future[bool]]] = []
        self._is_saving = False
        self.added_bytes = 0

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
            self.added_bytes += await self._database.write(lambda session: save_responses(session, saves))
            for _, saved in batch:
                _settle(saved, True)
            return
        for save, saved in batch:
            if saved.done():  # its caller no longer waits, and has said that it is not stored
                continue
            try:
                _settle(saved, await self._database.write(partial(save_response, save=save)))
            except StoreError as error:
                _settle(saved, error)


def _settle(saved: "asyncio.Future[bool]", result: bool | StoreError) -> None:
    if saved.done():
        return
    if isinstance(result, StoreError):
        saved.set_exception(result)
    else:
        saved.set_result(result)


async def save_responses(session: Session, saves: Sequence[Save]) -> int:
    """Save responses of any owners; return how many bytes that added. Raises NotUnique if an id is taken."""
    async with change(session, *(save.row.owner for save in saves)) as changes:
        rows = [await _hold_base(session, save.row) for save in saves]
        stored = list(zip(saves, rows, strict=True))
        await insert_items(changes, [item for save, row in stored for item in _list_own(save, row)])
        await insert(session, f"dragoman.responses ({COLUMNS})", [astuple(row) for row in rows])
        await count_references(changes, [(row.owner, digest) for row in rows for digest in row.digests])
        for save, row in stored:
            changes.count(row.owner, Kept(responses=1, bytes=measure_row(row)))
            if save.appended:
                await add_reply(changes, row, save.appended)
    return changes.added_bytes


async def save_response(session: Session, save: Save) -> bool:
    """Save one response; return whether there was none with its id."""
    await session.lock(save.row.owner)
    known = "SELECT 1 FROM dragoman.responses WHERE owner = $1 AND id = $2"
    if await find(session, int, known, save.row.owner, save.row.id):
        return False
    await save_responses(session, [save])
    return True


async def _hold_base(session: Session, row: ResponseRow) -> ResponseRow:
    """Return a response as it is stored: without the items that its base holds, if that is still there."""
    if not row.base:
        return row
    if await session.execute(HOLD_BASE, row.owner, row.base, row.input_start):
        return replace(row, context=row.context[row.input_start * DIGEST_BYTES :])
    return replace(row, base="")


def _list_own(save: Save, row: ResponseRow) -> list[tuple[str, ItemRow]]:
    """Return the items that a stored row refers to, with their owner."""
    if not row.base:
        return [(row.owner, item) for item in save.items]
    own = {*row.digests}
    return [(row.owner, item) for item in save.items if item.digest in own]

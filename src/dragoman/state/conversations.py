"""Conversations: lists of items that requests continue and that clients edit."""

from collections.abc import Sequence

import msgspec

from dragoman.state.context import OwnedResponses, conversation_not_found, make_row, mint, resolve_items
from dragoman.state.service import ItemPage, ResponseService, now, render_item, render_page
from dragoman.store.response_rows import ConversationRow, ItemRow, OwnedId
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.request import Json
from dragoman.translate.protocols.responses.state_items import check_ids, duplicate_item, read_input, read_metadata

MAX_ADDED = 20  # items per call
MAX_ITEMS = 10_000  # of one conversation


class Conversations:
    """What clients do with conversations, for one owner at a time. Errors are those of OpenAI's API."""

    def __init__(self, service: ResponseService) -> None:
        self._service = service
        self._store = service.store

    async def create(self, owner: str, raw: dict[str, Json]) -> bytes:
        self._service.check_keeps()
        rows = await self._read_items(owner, raw, ())
        row = ConversationRow(owner, mint("conv_"), now(), msgspec.json.encode(read_metadata(raw)))
        room = await self._service.ask(self._store.add_conversation(row, rows, self._service.bounds))
        self._service.check_room(room, "/items" if rows else "")
        return render(row)

    async def find(self, owner: str, id: str) -> ConversationRow:
        row = await self._service.ask(self._store.find_conversation(owner, id))
        if row is None:
            raise conversation_not_found(id)
        return row

    async def update(self, owner: str, id: str, raw: dict[str, Json]) -> bytes:
        """Replace the metadata."""
        self._service.check_keeps()
        if raw.get("metadata") is None:
            raise BadRequest("/metadata", "metadata is required.", code="missing_required_parameter")
        metadata = msgspec.json.encode(read_metadata(raw))
        if not await self._service.ask(self._store.set_metadata(owner, id, metadata)):
            raise conversation_not_found(id)
        return render(await self.find(owner, id))

    async def delete(self, owner: str, id: str) -> bytes:
        if not await self._service.ask(self._store.delete_conversation(owner, id)):
            raise conversation_not_found(id)
        return msgspec.json.encode({"id": id, "object": "conversation.deleted", "deleted": True})

    async def add(self, owner: str, id: str, raw: dict[str, Json]) -> bytes:
        """Add items at the end; return them as a list, in their order."""
        self._service.check_keeps()
        await self.find(owner, id)
        if raw.get("items") is None:
            raise BadRequest("/items", "items is required.", code="missing_required_parameter")
        held = await self._items(owner, id)
        rows = await self._read_items(owner, raw, held)
        if len(held) + len(rows) > MAX_ITEMS:
            raise BadRequest("/items", f"A conversation has at most {MAX_ITEMS} items, and this one has {len(held)}.")
        room = await self._service.ask(self._store.append_items(OwnedId(owner, id), rows, self._service.bounds))
        if room is None:
            raise conversation_not_found(id)
        self._service.check_room(room, "/items")
        return render_page(rows, ItemPage(order="asc", limit=MAX_ADDED))

    async def list(self, owner: str, id: str, page: ItemPage) -> bytes:
        await self.find(owner, id)
        return render_page(await self._items(owner, id), page)

    async def item(self, owner: str, id: str, item: str, *, shows_hidden: bool) -> bytes:
        await self.find(owner, id)
        row = next((row for row in await self._items(owner, id) if row.id == item), None)
        if row is None:
            raise item_not_in(id, item)
        return bytes(render_item(row, shows_hidden=shows_hidden))

    async def delete_item(self, owner: str, id: str, item: str) -> bytes:
        """Remove an item; return the conversation."""
        row = await self.find(owner, id)
        if not await self._service.ask(self._store.delete_item(owner, id, item)):
            raise item_not_in(id, item)
        return render(row)

    async def _items(self, owner: str, id: str) -> tuple[ItemRow, ...]:
        loaded = await self._service.ask(self._store.load_conversation(owner, id))
        return () if loaded is None else loaded[1]

    async def _read_items(self, owner: str, raw: dict[str, Json], held: Sequence[ItemRow]) -> tuple[ItemRow, ...]:
        """Return the rows of a request's items. Raises RequestError."""
        if isinstance(raw.get("items"), str):
            raise BadRequest("/items", "items must be an array.")
        items = read_input(raw, "items")
        if len(items) > MAX_ADDED:
            message = f"items has {len(items)} items; a call may add at most {MAX_ADDED}: add them in several calls."
            raise BadRequest("/items", message, code="array_above_max_length")
        check_ids(items)
        resolved = await self._service.ask(resolve_items(OwnedResponses(self._store, owner, now()), (), items))
        rows = tuple(one.row or make_row(one.item) for one in resolved)
        known = {row.id for row in held}
        for row in rows:
            if row.id in known:
                raise duplicate_item(row.id, "/items")
            known.add(row.id)
        return rows


def render(row: ConversationRow) -> bytes:
    metadata = msgspec.Raw(row.metadata)
    body = {"id": row.id, "object": "conversation", "created_at": row.created_at, "metadata": metadata}
    return msgspec.json.encode(body)


def item_not_in(conversation: str, item: str) -> RequestError:
    message = f"Item with id '{item}' not found in conversation '{conversation}'."
    return RequestError(Failure(Kind.NOT_FOUND, message))

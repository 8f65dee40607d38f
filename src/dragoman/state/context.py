"""The context of a request: the items that come before its input, and the items of its input."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.store.response_rows import DIGEST_BYTES, ItemRow, ResponseRow
from dragoman.store.responses import Responses
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.request import Json
from dragoman.translate.protocols.responses.state_items import (
    REFERENCE,
    check_context,
    check_ids,
    complete_item,
    item_not_found,
    lacks_opaque,
    open_compaction,
    read_id,
    read_input,
    type_of,
)
from dragoman.translate.protocols.responses.wire import Item

MAX_ITEMS = 20_000  # of one context
ID_BYTES = 24

Memory = Mapping[str, "tuple[ContextItem, ...]"]
NO_MEMORY: Memory = {}
_object = msgspec.json.Decoder(dict[str, Json])


class ContextItem(Struct, frozen=True):
    """An item as a request is built from it, and its row where it is stored already."""

    item: Item
    row: ItemRow | None = None


class OwnedResponses(Struct, frozen=True):
    """What one owner has stored and has not expired by now."""

    store: Responses
    owner: str
    now: int


class Context(Struct, frozen=True):
    """What a request refers to, and its input with every reference replaced by the item that it names."""

    earlier: tuple[ContextItem, ...] = ()
    items: tuple[ContextItem, ...] = ()
    previous: str | None = None
    conversation: str | None = None
    keeper: str = ""  # the provider that keeps the earlier response itself
    base: str = ""  # a stored response whose context and output are the earlier items

    @property
    def source(self) -> str:
        """Return the pointer to the field that the earlier items come from."""
        return "/conversation" if self.conversation is not None else "/previous_response_id"

    @property
    def whole(self) -> list[Json]:
        return [one.item for one in (*self.earlier, *self.items)]

    @property
    def has_stored(self) -> bool:
        """Whether some of the items come from what is kept; then they have been checked."""
        return bool(self.earlier) or any(one.row is not None for one in self.items)

    @property
    def earlier_bytes(self) -> int:
        """Return the bytes of the items that come before the input."""
        return sum_rows(self.earlier)

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of all items that come from what is kept."""
        return self.earlier_bytes + sum_rows(self.items)

    def check(self) -> None:
        """Raise RequestError if an item comes twice, or a call and its result are not together."""
        if not self.has_stored:
            check_context((), [one.item for one in self.items])

    def without_type(self, type: str) -> "Context":
        """Return the context without input items of this type."""
        return replace(self, items=tuple(one for one in self.items if type_of(one.item) != type))

    def rows(self) -> tuple[ItemRow, ...]:
        """Return the rows of all items. Items without an id get one."""
        has_history = bool(self.earlier)
        occurrences: dict[bytes, int] = {}
        return tuple(
            one.row or make_row(one.item, None if has_history else occurrences) for one in (*self.earlier, *self.items)
        )


def sum_rows(items: Iterable[ContextItem]) -> int:
    """Return the bytes of the items that are stored."""
    return sum(one.row.size for one in items if one.row is not None)


def mint(prefix: str) -> str:
    return prefix + secrets.token_hex(ID_BYTES)


def digest_item(item: Item, salt: int = 0) -> bytes:
    """Return the digest under which an item is stored: the same however a client orders its fields."""
    fields = {key: value for key, value in item.items() if value is not None}
    canonical = msgspec.json.encode(fields, order="sorted") + (b"%d" % salt if salt else b"")
    return blake2b(canonical, digest_size=DIGEST_BYTES).digest()


def make_row(item: Item, occurrences: dict[bytes, int] | None = None) -> ItemRow:
    """Return the row of an item that a client sent.

    Clients that resend their whole history send the same items without ids again and again. These are stored once: the
    first of equal items in one input is always the same row, and so is the second. `occurrences` counts them.
    """
    completed = complete_item(item, mint)
    if item.get("id") or occurrences is None:
        digest = digest_item(completed)
    else:
        plain = digest_item({key: value for key, value in completed.items() if key != "id"})
        number = occurrences[plain] = occurrences.get(plain, 0) + 1
        digest = digest_item({"occurrence": plain.hex()}, number)
    return ItemRow(digest, str(completed["id"]), msgspec.json.encode(completed))


def restore(row: ItemRow) -> ContextItem:
    """Return a stored item as requests are built from it: with what its client was not shown."""
    if not row.body:  # its provider has it
        return ContextItem({"type": REFERENCE, "id": row.id}, row)
    item = _object.decode(row.body)
    if row.hidden is not None:
        item["encrypted_content"] = row.hidden.decode()
    return ContextItem(item, row)


async def load_chain(store: Responses, row: ResponseRow) -> tuple[ContextItem, ...]:
    """Return the context and the output of a response. Raises RequestError if an item is gone."""
    found = await store.load_chain(row)
    items = tuple(restore(item) for item in found if item is not None)
    if len(items) < len(found):
        raise previous_not_found(row.id)
    # What follows the last compaction, with it: it stands for everything before.
    places = [index for index, one in enumerate(items) if type_of(one.item) == "compaction"]
    return items[places[-1] :] if places else items


async def read_context(stored: OwnedResponses, raw: dict[str, Json], memory: Memory = NO_MEMORY) -> Context:
    """Return the context of a request; raises RequestError if it refers to something that its owner does not have.

    `memory` has the context and output of responses that are not in the store.
    """
    previous, conversation = read_id(raw, "previous_response_id"), read_conversation(raw)
    if previous is not None and conversation is not None:
        raise BadRequest(
            "/previous_response_id",
            "Mutually exclusive parameters: Ensure you are only providing one of: previous_response_id or "
            "conversation.",
            code="mutually_exclusive_parameters",
        )
    items = read_input(raw)
    check_ids(items)
    earlier: tuple[ContextItem, ...] = ()
    base = previous or ""
    if previous is not None and previous in memory:
        earlier = memory[previous]
    elif previous is not None:
        row = await stored.store.find_response(stored.owner, previous, stored.now)
        if row is None or row.status in ("queued", "in_progress"):
            raise previous_not_found(previous)
        if row.keeper:
            return Context((), tuple(map(ContextItem, items)), previous, keeper=row.keeper)
        earlier = await load_chain(stored.store, row)
        base = row.id if len(earlier) == row.chain_length else ""
    elif conversation is not None:
        loaded = await stored.store.load_conversation(stored.owner, conversation)
        if loaded is None:
            raise conversation_not_found(conversation)
        earlier, base = tuple(map(restore, loaded[1])), loaded[0].newest
    resolved = await resolve_items(stored, earlier, items)
    keeper = _find_keeper(earlier, resolved)
    if keeper:
        return Context((), tuple(map(ContextItem, items)), keeper=keeper)
    _check_compactions(stored.owner, items)
    if earlier or any(one.row is not None for one in resolved):
        check_context([one.item for one in earlier], [one.item for one in resolved])
    if len(earlier) + len(resolved) > MAX_ITEMS:
        message = f"The context has {len(earlier) + len(resolved)} items, more than {MAX_ITEMS}: compact it."
        raise BadRequest("/input", message)
    return Context(earlier, resolved, previous, conversation, base=base)


def _find_keeper(earlier: Sequence[ContextItem], items: Sequence[ContextItem]) -> str:
    """Return the provider that keeps the items that are referred to; empty if the gateway does."""
    rows = [one.row for one in (*earlier, *items) if one.row is not None]
    keepers = {row.hidden or b"" for row in rows if not row.body}
    if not keepers:
        return ""
    if len(keepers) > 1 or any(row.body for row in rows):  # they are not all in one place
        raise item_not_found(next(row.id for row in rows if not row.body))
    return keepers.pop().decode()


async def resolve_items(
    stored: OwnedResponses, earlier: Sequence[ContextItem], items: Sequence[Item]
) -> tuple[ContextItem, ...]:
    """Replace references by what they name, and complete items that came back without their opaque part."""
    referenced = [str(item.get("id")) for item in items if type_of(item) == REFERENCE or lacks_opaque(item)]
    if not referenced:
        return tuple(map(ContextItem, items))
    known = {str(one.item.get("id")): one.row or make_row(one.item) for one in earlier if one.item.get("id")}
    missing = [id for id in referenced if id not in known]
    rows = (await stored.store.find_items(stored.owner, missing, stored.now) if missing else {}) | known
    return tuple(_complete(item, rows) for item in items)


def _complete(item: Item, rows: dict[str, ItemRow]) -> ContextItem:
    id = str(item.get("id"))
    if type_of(item) == REFERENCE:
        if id not in rows:
            raise item_not_found(id)
        return restore(rows[id])
    if lacks_opaque(item) and id in rows and (rows[id].body or type_of(item) == "reasoning"):
        return restore(rows[id])
    return ContextItem(item)


def _check_compactions(owner: str, items: Iterable[Item]) -> None:
    for index, item in enumerate(items):
        token = item.get("encrypted_content")
        if type_of(item) != "compaction" or not isinstance(token, str):
            continue
        compaction = open_compaction(token)
        if compaction is not None and compaction.owner != owner_digest(owner):
            raise BadRequest(
                f"/input/{index}", f"input[{index}] is a compacted context that was not made for this key."
            )


def owner_digest(owner: str) -> str:
    return blake2b(owner.encode(), digest_size=8).hexdigest()


def read_conversation(raw: dict[str, Json]) -> str | None:
    """Return the id of the request's conversation, which may stand in an object."""
    value = raw.get("conversation")
    return read_id(value, "id") if isinstance(value, dict) else read_id(raw, "conversation")


def previous_not_found(id: str) -> RequestError:
    message = f"Previous response with id '{id}' not found."
    return BadRequest("/previous_response_id", message, code="previous_response_not_found")


def response_not_found(id: str) -> RequestError:
    return RequestError(Failure(Kind.NOT_FOUND, f"Response with id '{id}' not found."))


def conversation_not_found(id: str) -> RequestError:
    return RequestError(Failure(Kind.NOT_FOUND, f"Conversation with id '{id}' not found."))

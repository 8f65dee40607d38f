"""Read, change and remove what is kept; errors are those of OpenAI's API."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from dragoman.config.settings import ResponsesSettings
from dragoman.state.context import (
    NO_MEMORY,
    Context,
    Memory,
    OwnedResponses,
    conversation_not_found,
    read_context,
    read_conversation,
    response_not_found,
    restore,
)
from dragoman.state.stored_call import ConversationLease, ParsedBody, StoredCall, Terms
from dragoman.store import Store, StoreError
from dragoman.store.response_rows import ItemRow, OwnedId, ResponseRow, Room, StorageBounds, split_digests
from dragoman.store.responses import Responses
from dragoman.store.runs import Runs
from dragoman.translate.framing.numbers import parse_number
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError, describe_cause
from dragoman.translate.hub.request import Json
from dragoman.translate.protocols.responses.encode_response import render_stored
from dragoman.translate.protocols.responses.state_items import TRIGGER, read_id, read_input, type_of, uses_state

T = TypeVar("T")

log = logging.getLogger(__name__)

STORE_RETRY_S = 10.0  # how long a store that failed is not used for replies that can do without
RETRY_S = 2.0  # when clients may try again
DAY_S = 86_400
MAX_LISTED = 100
STORAGE_LIMIT = "storage_limit_reached"  # the code of a refusal


class ItemPage(Struct, frozen=True):
    """Which part of a list is requested."""

    order: str = "desc"
    limit: int = 20
    after: str | None = None
    before: str | None = None
    shows_hidden: bool = False  # with opaque reasoning


class ResponseService:
    """The responses that the gateway keeps."""

    def __init__(self, store: Store, settings: Callable[[], ResponsesSettings]) -> None:
        self.store: Responses = store.responses
        self._settings = settings
        self.is_out: Callable[[], bool] = lambda: False  # it is known that the store does not answer
        self._left_alone_until = 0.0
        self._is_failing = False  # the store; logged once, until it answers again
        self.counts = {"kept": 0, "not_kept": 0}

    def uses_state(self, body: bytes) -> bool:
        """Return whether a request reads or changes what is kept."""
        return uses_state(body, stores=self._settings().store)

    async def open_call(self, owner: str, raw: dict[str, Json], size: int, memory: Memory = NO_MEMORY) -> StoredCall:
        """Return the state of a call; raises RequestError if it refers to something that its owner does not have."""
        wants = raw.get("store")
        if wants is not None and not isinstance(wants, bool):
            raise BadRequest("/store", "store must be true or false.")
        check_trigger(raw)
        terms = self._terms(owner, wants=wants is not False)
        lease = await self._lease(owner, raw) if terms.keeps and raw.get("conversation") is not None else None
        try:
            context = await self.ask(read_context(OwnedResponses(self.store, owner, now()), raw, memory))
        except BaseException:
            if lease is not None:
                await lease.release()
            raise
        state = StoredCall(self.store, terms, ParsedBody(raw, size), context)
        state.lock = lease
        return state

    async def restore_call(self, row: ResponseRow, fields: dict[str, Json]) -> StoredCall:
        """Return the state of a call whose response is queued, from what was stored of it and the request's fields."""
        items = tuple(restore(item) for item in await self.store.load_context(row) if item is not None)
        previous = read_id(fields, "previous_response_id")
        context = Context(items[: row.input_start], items[row.input_start :], previous, row.conversation or None)
        size = sum(one.row.size for one in context.items if one.row is not None)
        terms = Terms(row.owner, True, row.expires_at - row.created_at)
        state = StoredCall(self.store, terms, ParsedBody(fields, size), context)
        state.id, state.created, state.in_background = row.id, row.created_at, True
        return state

    async def _lease(self, owner: str, raw: dict[str, Json]) -> ConversationLease | None:
        """Return the lock of the request's conversation; raises RequestError if another request holds it."""
        conversation = read_conversation(raw)
        if conversation is None or raw.get("previous_response_id") is not None:
            return None
        if await self.ask(self.store.find_conversation(owner, conversation)) is None:
            raise conversation_not_found(conversation)
        self.check_room(await self.ask(self.store.find_room(owner, self.bounds)), "/conversation")
        lease = ConversationLease(self.store, OwnedId(owner, conversation))
        if not await self.ask(lease.take()):
            message = "Another process is currently operating on this conversation. Please retry in a few seconds."
            raise BadRequest("/conversation", message, code="conversation_locked")
        return lease

    def _terms(self, owner: str, *, wants: bool) -> Terms:
        settings = self._settings()
        keeps, why_not = wants and settings.store, ""
        if keeps and (self.is_out() or time.monotonic() < self._left_alone_until):
            keeps, why_not = False, "the store cannot be reached, so this response is not kept"
        return Terms(owner, keeps, int(settings.retention_days * DAY_S), why_not)

    def check_keeps(self) -> None:
        """Raise RequestError if the configuration says that nothing is kept."""
        if not self._settings().store:
            message = "This gateway keeps nothing ([responses] store = false): send the whole input with each request."
            raise BadRequest("", message)

    @property
    def bounds(self) -> StorageBounds:
        return find_bounds(self._settings())

    def check_room(self, room: Room, at: str) -> None:
        """Raise RequestError if conversations have reached a bound."""
        settings = self._settings()
        match room:
            case Room.FREE:
                return
            case Room.TOO_MANY:
                reached = f"This key has {settings.max_per_key} conversations, the most ([responses] max_per_key)."
            case Room.TOO_LARGE:
                reached = (
                    "The conversations of this key may hold"
                    f" {settings.max_mb_per_key:g} MB together ([responses] max_mb_per_key)."
                )
            case Room.FULL:
                reached = (
                    f"The conversations of all keys may hold {settings.max_mb:g} MB together ([responses] max_mb)."
                )
        raise BadRequest(at, f"{reached} Delete conversations or items that are not needed.", code=STORAGE_LIMIT)

    def record_end(self, call: StoredCall) -> None:
        """Note how the storing of a reply went; after a failure the store is left alone for a while."""
        if call.committed is None:
            return
        self.counts["kept" if call.committed else "not_kept"] += 1
        if not call.committed:
            self._left_alone_until = time.monotonic() + STORE_RETRY_S

    async def find(self, owner: str, id: str) -> ResponseRow:
        row = await self.ask(self.store.find_response(owner, id, now()))
        if row is None:
            raise response_not_found(id)
        return row

    async def render(self, row: ResponseRow, *, shows_hidden: bool = False) -> bytes:
        """Return the response object as JSON."""
        rows = await self.ask(self.store.load_items(row.owner, (row.settings, *split_digests(row.output))))
        output = [rows[digest] for digest in split_digests(row.output) if digest in rows]
        settings = rows[row.settings].body if row.settings in rows else b"{}"
        items = [render_item(item, shows_hidden=shows_hidden) for item in output]
        return render_stored(row.head, settings, items, row.status)

    async def delete(self, owner: str, id: str) -> bytes:
        if not await self.ask(self.store.delete_response(owner, id)):
            raise response_not_found(id)
        return msgspec.json.encode({"id": id, "object": "response.deleted", "deleted": True})

    async def list_input(self, row: ResponseRow, page: ItemPage) -> bytes:
        """Return the items that a response was generated from, as a list."""
        rows = await self.ask(self.store.load_context(row))
        return render_page([item for item in rows if item is not None], page)

    async def ask(self, operation: Awaitable[T]) -> T:
        """Wait for the store; raises RequestError (503) if it fails."""
        patience_s = self.store.database.patience_s
        try:
            async with asyncio.timeout(0.0 if self.is_out() else patience_s):  # some operations need no store
                answer = await operation
        except (StoreError, TimeoutError) as error:
            self._left_alone_until = time.monotonic() + STORE_RETRY_S
            if not self._is_failing:
                self._is_failing = True
                cause = describe_cause(error, f"no answer within {patience_s:g} s")
                log.error("stored responses cannot be read: %s", cause)
            message = "The store of responses cannot be reached. Try again in a moment, or send the whole input."
            raise RequestError(Failure(Kind.OVERLOADED, message, retry_after=RETRY_S)) from error
        if self._is_failing:
            self._is_failing = False
            log.info("stored responses can be read again")
        return answer


def now() -> int:
    return int(time.time())


def check_trigger(raw: dict[str, Json]) -> bool:
    """Return whether a request asks for a compaction instead of an answer; raises RequestError if in the middle."""
    places = [index for index, item in enumerate(read_input(raw)) if type_of(item) == TRIGGER]
    if places and places != [len(read_input(raw)) - 1]:
        raise BadRequest(f"/input/{places[0]}", f"input[{places[0]}]: {TRIGGER} must be the last item of the input.")
    return bool(places)


def render_item(row: ItemRow, *, shows_hidden: bool) -> Raw:
    """Return an item as clients see it."""
    if not shows_hidden or row.hidden is None:
        return Raw(row.body)
    return Raw(row.body[:-1] + b',"encrypted_content":' + msgspec.json.encode(row.hidden.decode()) + b"}")


def render_page(rows: Sequence[ItemRow], page: ItemPage) -> bytes:
    """Return one page of a list of items. Raises RequestError if a cursor names none of them."""
    ordered = list(rows) if page.order == "asc" else list(reversed(rows))
    ids = [row.id for row in ordered]
    start, end = 0, len(ordered)
    for name, cursor in (("after", page.after), ("before", page.before)):
        if cursor is not None and cursor not in ids:
            raise BadRequest(f"/{name}", f"Invalid '{name}': there is no item with id '{cursor}' in this list.")
    if page.after is not None:
        start = ids.index(page.after) + 1
    if page.before is not None:
        end = ids.index(page.before)
    chosen = ordered[start:end][: page.limit]
    body = {
        "object": "list",
        "data": [render_item(row, shows_hidden=page.shows_hidden) for row in chosen],
        "first_id": chosen[0].id if chosen else None,
        "last_id": chosen[-1].id if chosen else None,
        "has_more": len(ordered[start:end]) > page.limit,
    }
    return msgspec.json.encode(body)


def read_page(parameters: Sequence[tuple[str, str]]) -> ItemPage:
    """Return the part of a list that a query asks for; raises RequestError."""
    given = dict(parameters)
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("/order", f"order must be asc or desc, got {order[:80]!r}.")
    limit = given.get("limit", "20")
    count = parse_number(limit)
    if count is None or not 1 <= count <= MAX_LISTED:
        raise BadRequest("/limit", f"limit must be a whole number from 1 to {MAX_LISTED}, got {limit[:80]!r}.")
    return ItemPage(order, count, given.get("after"), given.get("before"), shows_hidden=includes_opaque(parameters))


def includes_opaque(parameters: Sequence[tuple[str, str]]) -> bool:
    """Return whether a query's `include` asks for opaque reasoning."""
    requested = [value for name, value in parameters if name in ("include", "include[]")]
    return any("reasoning.encrypted_content" in value for value in requested)


REMOVE_EVERY_S = 300.0
REMOVE_BATCH = 10  # responses in one transaction, for which others of the same client key wait
REMOVE_PAUSE_S = 0.01
CHECK_EVERY_S = 1.0
EARLIER_SHARE = 1 / 8  # of max_mb_per_key: when so much was stored, the bounds are checked before the time
EVENTS_KEPT_S = 600  # after the end of a response
MB = 1024 * 1024


async def remove_old_responses_forever(
    store: Store, settings: Callable[[], ResponsesSettings], every_s: float = REMOVE_EVERY_S
) -> None:
    while True:
        added = store.responses.added_bytes  # before the removal: what is stored meanwhile may be too much again
        try:
            await remove_old_responses(store.responses, settings())
            await remove_old_events(store.runs)
            await store.database.tidy()
        except StoreError as error:
            log.warning("old responses cannot be removed now: %s", error)
        await _wait_for_more(store.responses, added, settings, every_s)


async def _wait_for_more(
    store: Responses, before: int, settings: Callable[[], ResponsesSettings], every_s: float
) -> None:
    """Wait until it is time to remove something: a client that stores much does not fill the disk until then."""
    until = time.monotonic() + every_s
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, CHECK_EVERY_S))
        if store.added_bytes - before > EARLIER_SHARE * settings().max_mb_per_key * MB:
            return


def find_bounds(settings: ResponsesSettings) -> StorageBounds:
    return StorageBounds(settings.max_per_key, int(settings.max_mb_per_key * MB), int(settings.max_mb * MB))


async def remove_old_events(runs: Runs) -> int:
    """Remove the events of background responses that ended some time ago; return of how many. The responses stay."""
    removed = 0
    while count := await runs.remove_events(int(time.time()) - EVENTS_KEPT_S, REMOVE_BATCH):
        removed += count
        await asyncio.sleep(REMOVE_PAUSE_S)
    return removed


async def remove_old_responses(store: Responses, settings: ResponsesSettings) -> int:
    """Remove all that is too old or too much; return how many responses."""
    bounds = find_bounds(settings)
    removed = 0
    while count := await store.remove_responses(int(time.time()), bounds, REMOVE_BATCH):
        removed += count
        await asyncio.sleep(REMOVE_PAUSE_S)
    if removed:
        log.info("removed %d stored responses that had expired or exceeded the bounds", removed)
    return removed

"""One call that refers to what is kept, or whose reply is to be kept, and the lock of its conversation."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Raw, Struct

from dragoman.net.tasks import spawn
from dragoman.state.context import Context, ContextItem, digest_item, mint, restore
from dragoman.store import StoreError
from dragoman.store.response_rows import ItemRow, OwnedId, ResponseRow, TimedLock
from dragoman.store.responses import Responses
from dragoman.translate.framing.fields import read_body
from dragoman.translate.hub.failure import BadRequest, describe_cause
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import ReplyState, StoredReply
from dragoman.translate.hub.request import Json, Request
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.responses.encode_response import (
    QUEUED_EVENTS,
    MadeResponse,
    ResponseIdentity,
    ResponseProgress,
    Snapshot,
    encode_made,
    encode_stream,
    make_stored_reply,
)
from dragoman.translate.protocols.responses.parse import parse_with_items
from dragoman.translate.protocols.responses.state_items import ItemIdReader, find_item_ids, read_metadata
from dragoman.translate.protocols.responses.wire import ENCRYPTED, Item

log = logging.getLogger(__name__)

LEASE_S = 60
EXTEND_EVERY_S = 20.0


class ConversationLease:
    """Holds the lock of one conversation, and extends it until it is released."""

    def __init__(self, store: Responses, conversation: OwnedId) -> None:
        self._store = store
        self._conversation = conversation
        self._token = secrets.token_hex(16)
        self._extending: asyncio.Task[None] | None = None

    async def take(self) -> bool:
        """Return whether the lock was free."""
        if not await self._lock():
            return False
        self._extending = spawn(self._extend_forever(), name="conversation lock")
        return True

    async def release(self) -> None:
        if self._extending is not None:
            self._extending.cancel()
        try:
            await self._store.unlock_conversation(self._conversation, self._token)
        except StoreError as error:
            log.warning("a conversation stays locked for up to %d s: %s", LEASE_S, error)

    async def _extend_forever(self) -> None:
        while True:
            await asyncio.sleep(EXTEND_EVERY_S)
            try:
                await self._lock()
            except StoreError as error:
                log.warning("the lock of a conversation could not be extended: %s", error)

    async def _lock(self) -> bool:
        now = int(time.time())
        lock = TimedLock(self._token, now + LEASE_S)
        return await self._store.lock_conversation(self._conversation, lock, now)


APPENDED = ("completed", "incomplete")  # statuses after which a conversation grows, and a connection remembers
_STORED = b'"store":true}'
_NOT_STORED = b'"store":false}'


Remember = Callable[[str, tuple[ContextItem, ...]], None]  # id of a response; its context and output


class Terms(Struct, frozen=True):
    """On which terms a reply is kept."""

    owner: str
    keeps: bool
    retention_s: int
    why_not: str = ""  # why nothing is kept although the client wants it


class ParsedBody(Struct, frozen=True):
    """The body of a request: its fields, and how many bytes they were."""

    fields: dict[str, Json]
    size: int


class RecordedState(Struct, kw_only=True):
    """What a replay needs to make the same state without the store. The names are part of the format of captures."""

    earlier: list[dict[str, Json]]
    items: list[dict[str, Json]]
    found: list[int]  # places of the items that came from the store
    previous: str | None
    conversation: str | None
    keeper: str
    keeps: bool
    why_not: str
    is_remembered: bool
    in_background: bool
    created: int
    owner: str = ""


class StoredCall:
    """The server's state that one call refers to, and that its reply becomes part of."""

    def __init__(
        self,
        store: Responses | None,  # None in a replay: nothing is written
        terms: Terms,
        body: ParsedBody,
        context: Context,
    ) -> None:
        self.lock: ConversationLease | None = None
        self.id = mint("resp_")
        self.context = context
        self.pinned = context.keeper  # the only provider that can answer, since it keeps the state; empty: any can
        self.route = ""  # provider/model that answers, once it is known
        self.memory: Remember | None = None  # of its connection, so that its items must be seen
        self.in_background = False  # its response was queued, and whoever runs it stores its end
        self.on_wait: Callable[[bool], None] | None = None  # of such a response: called when it waits for a limit
        self.size = body.size + context.earlier_bytes  # of the whole request, with what it refers to
        self.created = int(time.time())
        self._store = store
        self._terms = terms
        self.raw = body.fields
        self.taken: StoredReply | None = None  # the complete reply
        self._keeper: tuple[str, str, str] | None = None
        self._items = ItemIdReader()
        self.committed: bool | None = None

    @property
    def is_rebuilt(self) -> bool:
        """Whether the request refers to what the gateway keeps, so that it cannot pass unchanged."""
        if self.in_background or (self.memory is not None and not self.pinned):
            return True
        return self.context.has_stored or self.context.conversation is not None

    @property
    def owner(self) -> str:
        return self._terms.owner

    @property
    def keeps(self) -> bool:
        """Whether the reply is to be kept."""
        return self._terms.keeps

    @property
    def why_not_stored(self) -> str:
        """Why the reply is not kept although the client wants it; empty if there is no such reason."""
        return self._terms.why_not

    @property
    def _holds(self) -> bool:
        """Whether a later turn gets the reply from here, from the store or from the memory of its connection."""
        return self.keeps or self.memory is not None

    @property
    def reply(self) -> ReplyState:
        """What the reply says about the state."""
        include = self.raw.get("include")
        is_included = isinstance(include, list) and ENCRYPTED in include
        hides = self._holds and not is_included
        announced = QUEUED_EVENTS if self.in_background else 0
        return ReplyState(self.id, self.fields, self.created, hides, self._take, self._holds, announced)

    @property
    def fields(self) -> dict[str, Json]:
        """What the reply says about the state, `store` last."""
        fields: dict[str, Json] = {"previous_response_id": self.context.previous}
        if self.context.conversation is not None:
            fields["conversation"] = {"id": self.context.conversation}
        return fields | {"store": self.keeps}

    def parse(self, ledger: Ledger) -> Request:
        """Return the whole request, with what it refers to; raises RequestError."""
        if self.raw.get("background") and not self.in_background:
            # A request that its upstream is to run passes unchanged, so it is not parsed.
            message = "background must be false: this upstream runs responses itself, and not requests like this one."
            raise BadRequest("/background", message)
        if self.keeps:
            read_metadata(self.raw)  # its bounds
            self.context.check()  # a response with half a pair could never be continued
        if self._terms.why_not:
            ledger.record_dropped("/store", self._terms.why_not)
        return parse_with_items(self.raw, self.context.whole, kept=self._holds, ledger=ledger)

    def record(self) -> RecordedState:
        """Return what a replay needs to make the same state without the store."""
        return RecordedState(
            earlier=[one.item for one in self.context.earlier],
            items=[one.item for one in self.context.items],
            found=[place for place, one in enumerate(self.context.items) if one.row is not None],
            previous=self.context.previous,
            conversation=self.context.conversation,
            keeper=self.context.keeper,
            keeps=self.keeps,
            why_not=self.why_not_stored,
            is_remembered=self.memory is not None,
            in_background=self.in_background,
            created=self.created,
            owner=self.owner,
        )

    def locate(self, path: str) -> str:
        """Return where something of the whole request stands in the client's body, as JSON pointers."""
        head, _, rest = path.removeprefix("/input/").partition("/")
        if not path.startswith("/input/") or not head.isdecimal():
            return path
        number = int(head) - len(self.context.earlier)
        if number < 0:
            return self.context.source
        if isinstance(self.raw.get("input"), str):
            return "/input"
        return f"/input/{number}/{rest}" if rest else f"/input/{number}"

    def record_keeper(self, provider: str, account: str, id: str) -> None:
        """Note that the provider keeps the reply itself, under this id."""
        if self.keeps and id:
            self._keeper = (provider, account, id)

    def observe(self, data: bytes, *, whole: bool) -> None:
        """Read what a keeper's reply consists of, from bytes that pass: all of them, or some of a stream."""
        if whole:
            self._items.ids = find_item_ids(data)
        else:
            self._items.feed(data)

    async def commit(self) -> bool:
        """Store the reply, once it is complete or its keeper is known; return False if it could not be stored."""
        if self.committed is None and self.keeps and not self.in_background:
            row = self._describe_stored_elsewhere() or (None if self.taken is None else self.describe(self.taken))
            if row is not None:
                self.committed = await self._save(*row)
                await self.release()
        if self.committed and self._keeper is not None and self._items.ids:
            await self._record_items(self._keeper)
        return self.committed is not False

    async def release(self) -> None:
        """Let other requests use the conversation."""
        lock, self.lock = self.lock, None
        if lock is not None:
            await lock.release()

    def mark_unstored(self, data: bytes) -> bytes:
        """Return the last bytes of a reply that could not be stored, saying so."""
        before, found, after = data.rpartition(_STORED)
        return before + _NOT_STORED + after if found else data

    async def cancel(self, *, has_begun: bool) -> None:
        """Store that the reply was cancelled if its client may know its id, and release the conversation."""
        if has_begun and self.committed is None and self.keeps and self._keeper is None:
            head = self.snapshot.stored_head(ResponseProgress("cancelled"))
            self._take(StoredReply("cancelled", head, self.snapshot.settings, ()))
            await self.commit()
        await self.release()

    async def _record_items(self, keeper: tuple[str, str, str]) -> None:
        """Note the items of a reply that its upstream keeps, so that their owner may refer to them."""
        provider, _, id = keeper
        ids, self._items.ids = dict.fromkeys(self._items.ids), []
        rows = [ItemRow(digest_item({"id": item, "keeper": provider}), item, b"", provider.encode()) for item in ids]
        if self._store is None:
            return
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self._store.database.patience_s):
                await self._store.add_output(self._terms.owner, id, rows)

    @property
    def snapshot(self) -> Snapshot:
        identity = ResponseIdentity(self.id, str(self.raw.get("model")), self.created)
        return Snapshot(identity, self.raw, self.fields)

    def make_body(self, output: Sequence[Item], usage: Usage | Raw) -> bytes:
        """Take a response that the gateway itself makes, and return it as one body."""
        made = MadeResponse(self.snapshot, output, usage, int(time.time()))
        self._take(make_stored_reply(made))
        return encode_made(made)

    def make_events(self, output: Sequence[Item], usage: Usage | Raw, *, done: bool) -> bytes:
        """Do the same with a stream of events; `done`: with [DONE] at its end."""
        made = MadeResponse(self.snapshot, output, usage, int(time.time()))
        self._take(make_stored_reply(made))
        return encode_stream(made, done=done)

    def _take(self, reply: StoredReply) -> None:
        """Take a reply that is complete, before its last event is sent."""
        self.taken = reply
        if self.memory is not None and reply.status in APPENDED:
            rows = (_output_row(item.id, item.body, item.hidden) for item in reply.items)
            self.memory(self.id, (*self.context.earlier, *self.context.items, *map(restore, rows)))

    def _describe_stored_elsewhere(self) -> "tuple[ResponseRow, Sequence[ItemRow], Sequence[bytes]] | None":
        if self._keeper is None:
            return None
        provider, account, id = self._keeper
        return msgspec.structs.replace(self._row(id, "kept"), keeper=provider, account=account), (), ()

    def describe(self, reply: StoredReply) -> tuple[ResponseRow, Sequence[ItemRow], Sequence[bytes]]:
        """Return the row of a response, its items, and the digests of those that its conversation grows by."""
        context = self.context.rows()
        output = [_output_row(item.id, item.body, item.hidden) for item in reply.items]
        settings = ItemRow(digest_item({"settings": reply.settings.decode()}), "", reply.settings)
        row = msgspec.structs.replace(
            self._row(self.id, reply.status),
            head=reply.head,
            settings=settings.digest,
            context=b"".join(item.digest for item in context),
            input_start=len(self.context.earlier),
            output=b"".join(item.digest for item in output),
            conversation=self.context.conversation or "",
            base=self.context.base,
        )
        grows = self.context.conversation is not None and reply.status in APPENDED
        new = [item.digest for item in (*context[len(self.context.earlier) :], *output)] if grows else []
        return row, (settings, *context, *output), new

    def _row(self, id: str, status: str) -> ResponseRow:
        return ResponseRow(
            owner=self._terms.owner,
            id=id,
            created_at=self.created,
            expires_at=self.created + self._terms.retention_s,
            status=status,
            model=str(self.raw.get("model") or ""),
            route=self.route,
        )

    async def _save(self, row: ResponseRow, items: Sequence[ItemRow], appended: Sequence[bytes]) -> bool:
        if self._store is None:
            return True
        patience_s = self._store.database.patience_s
        try:
            async with asyncio.timeout(patience_s):
                await self._store.save_response(row, items, appended)
        except (StoreError, TimeoutError) as error:
            cause = describe_cause(error, f"no answer within {patience_s:g} s")
            log.error("a response could not be stored: %s", cause)
            return False
        return True


def _output_row(id: str, body: bytes, hidden: str | None) -> ItemRow:
    digest = digest_item(msgspec.json.decode(body, type=dict[str, Json]))
    return ItemRow(digest, id, body, None if hidden is None else hidden.encode())


def restore_call(recorded: RecordedState, body: bytes) -> StoredCall:
    """Return the state that was recorded with a captured request; nothing of it is stored or remembered."""
    row = ItemRow(b"", "", b"")
    context = Context(
        tuple(ContextItem(item, row) for item in recorded.earlier),
        tuple(ContextItem(item, row if at in recorded.found else None) for at, item in enumerate(recorded.items)),
        recorded.previous,
        recorded.conversation,
        recorded.keeper,
    )
    terms = Terms(recorded.owner, keeps=recorded.keeps, retention_s=0, why_not=recorded.why_not)
    raw = read_body(body)
    if recorded.in_background:
        raw["background"] = True  # as the client requested it, unlike the process that ran the response
    state = StoredCall(None, terms, ParsedBody(raw, len(body)), context)
    state.in_background, state.created = recorded.in_background, recorded.created
    state.memory = (lambda id, items: None) if recorded.is_remembered else None
    return state

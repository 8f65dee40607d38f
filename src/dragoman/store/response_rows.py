"""Stored responses, conversations and background responses: their rows, and the operations on them.

An item (a message, a call, a reasoning item, or the settings of a response) is stored once per owner, under a digest.
Responses and conversations refer to items by digest; an item is removed with the last reference to it.

The row of a run exists from the moment its background response is queued to the moment that ends. It is claimed once,
by one process, with a token and a lease. Whatever ends a response removes the row of its run in the same transaction,
so a response ends once: completed, failed or cancelled, whichever comes first.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

DIGEST_BYTES = 16
BACKGROUND, BACKGROUND_STREAM = "background", "background stream"  # modes
UNFINISHED = ("queued", "in_progress")  # statuses of a background response that has not ended


class ItemRow(Struct, frozen=True):
    digest: bytes
    id: str  # the item's own id; empty for settings
    body: bytes  # JSON as clients see it; empty if a provider keeps the item itself
    hidden: bytes | None = None  # opaque reasoning that clients see only if they ask; of such an item, the provider

    @property
    def size(self) -> int:
        return len(self.body) + len(self.hidden or b"")


class ResponseRow(Struct, frozen=True):
    """A response. The items that it refers to are stored beside it."""

    owner: str
    id: str
    created_at: int  # seconds since the epoch, as all times here
    expires_at: int
    status: str
    model: str  # as the client named it
    route: str  # provider/model that answered
    head: bytes = b"{}"  # the JSON fields that belong to this response alone
    settings: bytes = b""  # digest of the item with the fields that the request set
    context: bytes = b""  # digests of the items that it was generated from, in order
    input_start: int = 0  # how many of them come from earlier responses or a conversation
    output: bytes = b""  # digests of the items that it consists of
    conversation: str = ""
    keeper: str = ""  # the provider that keeps the response itself; then nothing else is stored of it
    account: str = ""  # which of the keeper's credentials
    mode: str = ""  # BACKGROUND or BACKGROUND_STREAM; empty: it was stored once it was complete

    @property
    def digests(self) -> tuple[bytes, ...]:
        """Return the digests of all items, each once."""
        settings = (self.settings,) if self.settings else ()
        return tuple(dict.fromkeys((*settings, *split_digests(self.context), *split_digests(self.output))))


class ConversationRow(Struct, frozen=True):
    owner: str
    id: str
    created_at: int
    metadata: bytes  # JSON


class Kept(Struct, frozen=True):
    """How much is stored: in all, or of one owner."""

    responses: int
    conversations: int
    items: int
    bytes: int


class Bounds(Struct, frozen=True):
    """The most that may be stored. The oldest responses beyond it are removed."""

    per_owner: int  # responses
    owner_bytes: int
    total_bytes: int


class ConversationLock(Struct, frozen=True):
    """Who works on a conversation, and until when others must wait."""

    token: str
    until: int


def split_digests(joined: bytes) -> tuple[bytes, ...]:
    return tuple(joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES))


class ResponseStore(Protocol):
    """Every operation names its owner first and may raise StoreError.

    What belongs to another owner is never found, changed or removed.
    """

    async def save_response(self, row: ResponseRow, items: Sequence[ItemRow], appended: Sequence[bytes] = ()) -> bool:
        """Add a response with its items in one transaction; False if one with its id exists already.

        The items with the digests `appended` are added to the conversation that the row names, if that still exists.
        """

    async def add_output(self, owner: str, id: str, items: Sequence[ItemRow]) -> None:
        """Add the items of a response that was saved without any; nothing happens if it is gone."""

    async def find_response(self, owner: str, id: str, now: int) -> ResponseRow | None:
        """Return a response that has not expired."""

    async def delete_response(self, owner: str, id: str) -> bool:
        """Remove a response and the items that nothing else refers to; return whether it existed."""

    async def load_items(self, owner: str, digests: Sequence[bytes]) -> dict[bytes, ItemRow]:
        """Return items by digest."""

    async def find_items(self, owner: str, ids: Sequence[str]) -> dict[str, ItemRow]:
        """Return items by their own id; the newest of several with one id."""

    async def list_responses(self, owner: str | None, limit: int, now: int) -> tuple[ResponseRow, ...]:
        """Return the newest responses, of one owner or of all."""

    async def measure(self, owner: str | None = None) -> Kept:
        """Return how much is stored, of one owner or of all."""

    async def remove_responses(self, now: int, bounds: Bounds, limit: int) -> int:
        """Remove at most `limit` responses that have expired or exceed the bounds, oldest first; return how many."""

    async def add_conversation(self, row: ConversationRow, items: Sequence[ItemRow]) -> None:
        """Add a conversation with its first items."""

    async def find_conversation(self, owner: str, id: str) -> ConversationRow | None: ...

    async def set_metadata(self, owner: str, id: str, metadata: bytes) -> bool:
        """Replace a conversation's metadata; return whether it exists."""

    async def delete_conversation(self, owner: str, id: str) -> bool:
        """Remove a conversation, not the responses that were made in it; return whether it existed."""

    async def append_items(self, owner: str, conversation: str, items: Sequence[ItemRow]) -> bool:
        """Add items at the end of a conversation; return whether it exists."""

    async def list_conversation_items(self, owner: str, conversation: str) -> tuple[ItemRow, ...]:
        """Return the items of a conversation in order."""

    async def delete_item(self, owner: str, conversation: str, item: str) -> bool:
        """Remove an item from a conversation, by its own id; return whether it was in it."""

    async def lock_conversation(self, owner: str, conversation: str, lock: ConversationLock, now: int) -> bool:
        """Take the lock, or extend it if the token is its own; False if another holds it.

        A background response of the conversation that has not ended holds it too.
        """

    async def unlock_conversation(self, owner: str, conversation: str, token: str) -> None:
        """Release the lock if this token holds it."""


class QueuedRun(Struct, frozen=True):
    """What is stored beside a response that is queued."""

    request: bytes  # what a process needs to run it
    events: bytes = b""  # the first ones, if it is streamed
    last_event: int = -1  # their last number


class Run(Struct, frozen=True):
    """A response that has not ended; `token` is empty while it is queued."""

    row: ResponseRow
    token: str
    request: bytes


class EventChunk(Struct, frozen=True):
    """Events that follow each other, as their stream sends them.

    An empty body says that they are too many to be kept: those before them are removed as well.
    """

    first: int  # sequence number
    last: int
    body: bytes


class RunEvents(Struct, frozen=True):
    token: str
    chunk: EventChunk


class StoredEvents(Struct, frozen=True):
    chunks: tuple[EventChunk, ...]
    is_running: bool  # more may follow


class Ending(Struct, frozen=True):
    """How a response ends that has no reply: cancelled or failed."""

    status: str
    head: bytes
    make_event: Callable[[int], bytes] | None = None  # the last event by its number, if the response is streamed
    expired_at: int | None = None  # it ends only if its lease has ended by then; None: in any case


class FinishedRun(Struct, frozen=True):
    """How a claimed response has ended, with its output and its last events."""

    token: str
    row: ResponseRow
    items: Sequence[ItemRow]
    appended: Sequence[bytes]  # digests of items that its conversation grows by, if that still exists
    chunks: Sequence[EventChunk]


class RunStore(Protocol):
    """Every operation may raise StoreError."""

    async def queue_run(self, row: ResponseRow, items: Sequence[ItemRow], run: QueuedRun, most: int) -> bool:
        """Add a queued response with its items; False if its owner has `most` that have not ended."""

    async def claim_runs(self, tokens: Sequence[str], until: int, per_owner: int) -> tuple[Run, ...]:
        """Take the oldest queued responses, one for each token, with a lease until then. They are then in progress.

        Those of an owner of which `per_owner` run are left.
        """

    async def extend_claims(self, tokens: Sequence[str], until: int) -> frozenset[str]:
        """Extend the leases of these claims; return those whose response has not been ended by others."""

    async def find_claims(self, tokens: Sequence[str]) -> frozenset[str]:
        """Return those of these claims whose response has not been ended by others."""

    async def add_events(self, events: Sequence[RunEvents], now: int) -> None:
        """Add events of claimed responses; those of responses that others have ended are left out."""

    async def finish_run(self, finished: FinishedRun, now: int) -> bool:
        """Store how a claimed response has ended; False if others have ended it."""

    async def end_run(self, owner: str, id: str, ending: Ending, now: int) -> bool:
        """End a response without a reply; False if it has ended already."""

    async def list_lost_runs(self, now: int, limit: int) -> tuple[Run, ...]:
        """Return responses whose lease has ended: the process that ran them has."""

    async def load_events(self, owner: str, id: str, after: int, limit: int) -> StoredEvents:
        """Return at most `limit` chunks with events whose number is greater than `after`, in order."""

    async def remove_events(self, before: int, limit: int) -> int:
        """Remove the events of at most `limit` responses that have ended before this time; return how many."""

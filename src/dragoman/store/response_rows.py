"""Rows of stored responses, conversations and background responses.

An item (a message, a call, a reasoning item, or the settings of a response) is stored once per owner, under a digest.
Responses and conversations refer to items by digest; an item is removed with the last reference to it.

A response that continues another one, its base, holds its own items only: its base holds the others. A response that
is removed while others continue it stays as a hidden row, without its settings, until they are removed too.

The row of a run exists from the moment its background response is queued to the moment that ends. It is claimed once,
by one process, with a token and a lease. Whatever ends a response removes the row of its run in the same transaction,
so a response ends once: completed, failed or cancelled, whichever comes first.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from operator import add

from msgspec import Struct
from msgspec.structs import astuple

DIGEST_BYTES = 16
# What a row takes on the disk besides its content, with its entries in indexes. Totals are stored: who changes one of
# these numbers counts the totals again, in a migration.
RESPONSE_BYTES = 768
ITEM_BYTES = 320
CONVERSATION_BYTES = 320
MEMBER_BYTES = 160  # of an item's place in a conversation
EVENTS_BYTES = 192  # of a chunk of events, or of a run
BACKGROUND, BACKGROUND_STREAM = "background", "background stream"  # modes
UNFINISHED = ("queued", "in_progress")  # statuses of a background response that has not ended


class OwnedId(Struct, frozen=True, order=True):
    """Names one response or conversation: two owners may have one with the same id."""

    owner: str
    id: str


class ItemRow(Struct, frozen=True):
    digest: bytes
    id: str  # the item's own id; empty for settings
    body: bytes  # JSON as clients see it; empty if a provider keeps the item itself
    hidden: bytes | None = None  # what clients see only if they ask (hub.ports.KeptItem); without a body, the provider

    @property
    def size(self) -> int:
        return len(self.body) + len(self.hidden or b"")

    @property
    def stored_size(self) -> int:
        return self.size + ITEM_BYTES


class ResponseRow(Struct, frozen=True):
    """A response. The items that it refers to are stored beside it.

    A row that is read from the store has the part of its context that its base does not hold; `load_context` of
    store/responses.py reads the rest.
    """

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
    base: str = ""  # a response whose context and output are the first `input_start` items of the context

    @property
    def owned_id(self) -> OwnedId:
        return OwnedId(self.owner, self.id)

    @property
    def digests(self) -> tuple[bytes, ...]:
        """Return the digests of all items, each once."""
        settings = (self.settings,) if self.settings else ()
        return tuple(dict.fromkeys((*settings, *split_digests(self.context), *split_digests(self.output))))

    @property
    def chain_length(self) -> int:
        """Return of how many items the context and the output consist, with those that the base holds."""
        return (self.input_start if self.base else 0) + (len(self.context) + len(self.output)) // DIGEST_BYTES


class ConversationRow(Struct, frozen=True):
    owner: str
    id: str
    created_at: int
    metadata: bytes  # JSON
    newest: str = ""  # a response whose context and output are the items of the conversation; empty if there is none


class Kept(Struct, frozen=True):
    """How much is stored, in all or of one owner; or by how much that changes."""

    responses: int = 0
    conversations: int = 0
    items: int = 0
    bytes: int = 0  # of everything; an item counts once, whoever refers to it
    conversation_bytes: int = 0  # of conversations and their items; an item in two of them counts twice

    def __add__(self, other: "Kept") -> "Kept":
        return Kept(*map(add, astuple(self), astuple(other)))


class StorageBounds(Struct, frozen=True):
    """The most that may be stored. Responses beyond it are removed; conversations are refused."""

    per_owner: int  # responses, and conversations
    owner_bytes: int
    total_bytes: int


class RemovalRule(Struct, frozen=True):
    """Which responses are removed: those that have expired by now, and those that exceed the bounds."""

    now: int
    bounds: StorageBounds


class Room(Enum):
    """Whether conversations may grow, or which bound they have reached."""

    FREE = "free"
    TOO_MANY = "too many"  # conversations of the owner
    TOO_LARGE = "too large"  # conversations of the owner
    FULL = "full"  # conversations of all owners


class TimedLock(Struct, frozen=True):
    """Who works on a conversation or runs a response, and until when others must wait."""

    token: str
    until: int


def split_digests(joined: bytes) -> tuple[bytes, ...]:
    return tuple(joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES))


class QueuedRun(Struct, frozen=True):
    """What is stored beside a response that is queued."""

    request: bytes  # what a process needs to run it
    events: bytes = b""  # the first ones, if it is streamed
    last_event: int = -1  # their last number
    items: Sequence[ItemRow] = ()  # that the response refers to


class RunRow(Struct, frozen=True):
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

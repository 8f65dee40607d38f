"""Rows of stored responses, conversations and background responses.

An item (a message, a call, a reasoning item, or the settings of a response) is stored once per owner, under a digest.
Responses and conversations refer to items by digest; an item is removed with the last reference to it.

The row of a run exists from the moment its background response is queued to the moment that ends. It is claimed once,
by one process, with a token and a lease. Whatever ends a response removes the row of its run in the same transaction,
so a response ends once: completed, failed or cancelled, whichever comes first.
"""

from collections.abc import Callable, Sequence

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

"""Background responses that have not ended, and the events of those that are streamed.

The row of a run exists from the moment its response is queued to the moment that ends. It is claimed once, by one
process, with a token and a lease. Whatever ends a response removes the row of its run in the same transaction, so a
response ends once: completed, failed or cancelled, whichever comes first.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.store.response_rows import ItemRow, ResponseRow


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

    async def finish_run(
        self,
        token: str,
        row: ResponseRow,
        items: Sequence[ItemRow],
        appended: Sequence[bytes],
        chunks: Sequence[EventChunk],
        now: int,
    ) -> bool:
        """Store how a claimed response has ended, with its output and last events; False if others have ended it.

        The items with the digests `appended` are added to its conversation, if that still exists.
        """

    async def end_run(self, owner: str, id: str, ending: Ending, now: int) -> bool:
        """End a response without a reply; False if it has ended already."""

    async def lost_runs(self, now: int, limit: int) -> tuple[Run, ...]:
        """Return responses whose lease has ended: the process that ran them has."""

    async def load_events(self, owner: str, id: str, after: int, limit: int) -> StoredEvents:
        """Return at most `limit` chunks with events whose number is greater than `after`, in order."""

    async def remove_events(self, before: int, limit: int) -> int:
        """Remove the events of at most `limit` responses that have ended before this time; return how many."""

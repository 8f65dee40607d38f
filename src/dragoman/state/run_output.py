"""The events of one background response, between the encoder that writes them and the store that keeps them."""

import asyncio
from collections.abc import Callable, Sequence

from dragoman.net.headers import Header
from dragoman.net.sink import DetachedSink
from dragoman.store.response_rows import EventChunk
from dragoman.translate.protocols.responses.encode_response import QUEUED_EVENTS

MAX_WAITING_BYTES = 1024 * 1024  # that the store has not taken yet; the upstream is then read no further
MAX_BYTES = 32 * 1024 * 1024  # of all events of a response; beyond it, they are not kept
_BLOCK_END = b"\n\n"
_NO_EVENT = (b":", b"data: [DONE]")  # how blocks begin that have no number


class RunOutput:
    """Gathers the events of a stream in numbered chunks."""

    def __init__(self, *, streams: bool, on_events: Callable[[], None]) -> None:
        self._streams = streams
        self._on_events = on_events
        self._partial = b""
        self._blocks: list[bytes] = []
        self._waiting = 0  # bytes of them
        self._total = 0
        self._next = QUEUED_EVENTS  # the number of the next event
        self._first = QUEUED_EVENTS  # the number of the first of the blocks
        self._being_stored: EventChunk | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()

    @property
    def is_blocked(self) -> bool:
        return not self._can_write.is_set()

    async def wait_writable(self) -> None:
        await self._can_write.wait()

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if not self._streams or not data:
            return
        *blocks, self._partial = (self._partial + data).split(_BLOCK_END)
        for block in blocks:
            if block and not block.startswith(_NO_EVENT):
                self._blocks.append(block + _BLOCK_END)
                self._next += 1
                self._waiting += len(block)
        if self._waiting > MAX_WAITING_BYTES:
            self._can_write.clear()
        if self._blocks:
            self._on_events()

    def begin_storing(self) -> EventChunk | None:
        """Return the events to be stored next: the same ones again until `stored` is called; None if there are none."""
        if self._being_stored is None and self._blocks:
            self._being_stored = self._take_chunk()
        return self._being_stored

    def record_stored(self) -> None:
        self._being_stored = None

    def take_rest(self) -> list[EventChunk]:
        """Return all events that are not stored, the last one in any case."""
        chunks = [] if self._being_stored is None else [self._being_stored]
        last = self._blocks[-1:]
        if self._blocks:
            chunk = self._take_chunk()
            chunks.append(chunk)
            if not chunk.body:
                chunks.append(EventChunk(chunk.last, chunk.last, b"".join(last)))
        return chunks

    def _take_chunk(self) -> EventChunk:
        body = b"".join(self._blocks)
        self._total += len(body)
        chunk = EventChunk(self._first, self._next - 1, b"" if self._total > MAX_BYTES else body)
        self._first, self._blocks, self._waiting = self._next, [], 0
        self._can_write.set()
        return chunk


class RunSink(DetachedSink):
    """Takes one attempt to run a background response; it is held back while the store takes events more slowly."""

    def __init__(self, output: RunOutput, echoed_id: bytes = b"") -> None:
        super().__init__(echoed_id)
        self._output = output

    async def wait_writable(self) -> None:
        await super().wait_writable()
        await self._output.wait_writable()

    def _take_head(self, status: int, headers: Sequence[Header]) -> None:
        """Do nothing: what is stored has no head."""

    def _take_body(self, data: bytes) -> bool:
        self._output.add(data)
        return not self._output.is_blocked

"""The last frames of a request that is not recorded, from the moment on in which its inspector was opened."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from dragoman.admin.live_timeline import MAX_ENTRIES, shorten
from dragoman.admin.timeline import EVENT_STREAM, FrameReader, Side, TimelineEntry, describe_event, describe_frame
from dragoman.flow.capture.format import Chunk
from dragoman.flow.pipes import PassthroughPipe, Source, TranslationPipe
from dragoman.flow.request_record import RequestRecord
from dragoman.framing.redaction import mask_text
from dragoman.hub.events import Event
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header
from dragoman.protocols import find_client_keys

EVENT_FIELDS = (b"data:", b"event:", b"id:", b":")  # with one of which an event begins


NoteFrames = Callable[[Sequence[object], Sequence[Event]], None]  # frames of the upstream, and what they mean


class TappedSource(Source):
    """A source that also passes on what it reads, from the middle of a reply on."""

    __slots__ = ("_note",)

    def __init__(self, note: NoteFrames, source: Source) -> None:
        super().__init__(source.framer, source.decoder)
        self.frames = source.frames
        self._note = note

    def feed(self, chunk: bytes) -> list[Event]:
        frames = self.framer.feed(chunk)
        self.frames += len(frames)
        events = [event for frame in frames for event in self.decoder.feed(frame)]
        self._note(frames, events)
        return events

    def finish(self) -> list[Event]:
        events = super().finish()
        self._note((), events)
        return events


class FrameRing:
    """The last MAX_ENTRIES frames, hub events and client events. Nothing is kept without a reader."""

    def __init__(self, record: RequestRecord, exchange: Exchange) -> None:
        self.readers = 0
        self.is_closed = False
        self._record = record
        self._exchange = exchange
        self._entries: deque[TimelineEntry] = deque(maxlen=MAX_ENTRIES)
        self._added = 0
        self._tapped: object = None
        self._secrets: set[bytes] = set(find_client_keys(exchange.headers.lasting, exchange.query))
        self._client: FrameReader | None = None
        if exchange.listener is None:
            exchange.listener = self
        self._tap()

    def read_from(self, position: int) -> tuple[list[TimelineEntry], int]:
        """Return the entries from a position on that are still there, and the position after the last one."""
        self._tap()
        first = self._added - len(self._entries)
        return list(islice(self._entries, max(0, position - first), None)), self._added

    def close(self) -> None:
        """Note that a reader has left; after the last one, nothing more is kept."""
        self.readers -= 1
        if self.readers:
            return
        self.is_closed = True
        self._entries.clear()
        if self._exchange.listener is self:
            self._exchange.listener = None

    def _tap(self) -> None:
        """Follow the reply; each upstream request of it has a pipe of its own."""
        reply = self._record.reply
        if reply is not self._tapped and isinstance(reply, TranslationPipe | PassthroughPipe):
            self._tapped = reply
            self._secrets.update(reply.tap(partial(TappedSource, self._note_read)))

    def _note_read(self, frames: Sequence[object], events: Sequence[Event]) -> None:
        if self.is_closed:
            return
        at = self._elapsed()
        for frame in frames:
            self._add(at, "upstream", describe_frame(frame))
        for event in events:
            self._add(at, "hub", describe_event(event))

    def _add(self, at: float, side: Side, text: str) -> None:
        self._entries.append(TimelineEntry(at, side, mask_text(shorten(text), self._secrets)))
        self._added += 1

    def _elapsed(self) -> float:
        return round(time.time() - self._record.started_at, 6)

    # A listener of the client's exchange

    def on_head(self, status: int, headers: Sequence[Header]) -> None:
        content_type = dict(headers).get(b"content-type", b"").decode("latin-1")
        self._client = FrameReader(content_type)
        self._add(self._elapsed(), "client", f"< {status} {content_type}")

    def on_body(self, data: bytes) -> None:
        if self._client is None:
            data = self._begin_in_the_middle(data)
        if data and self._client is not None:
            for at, text in self._client.feed(Chunk(self._elapsed(), data)):
                self._add(at, "client", text)

    def _begin_in_the_middle(self, data: bytes) -> bytes:
        """Return what can be read of a response whose head was sent already: from its next event on."""
        if data.startswith(EVENT_FIELDS):
            self._client = FrameReader(EVENT_STREAM)
        elif b"\n\n" in data:
            self._client = FrameReader(EVENT_STREAM)
            data = data.partition(b"\n\n")[2]
        elif data:
            self._client = FrameReader("")
        return data

    def on_end(self) -> None:
        return


class RingTimeline:
    """Reads the entries of a ring, each once."""

    def __init__(self, ring: FrameRing) -> None:
        self._ring = ring
        self._position = 0
        self.dropped = 0

    def read(self) -> list[TimelineEntry]:
        before = self._position
        entries, self._position = self._ring.read_from(before)
        self.dropped += self._position - before - len(entries)
        return entries

    def close(self) -> None:
        self._ring.close()

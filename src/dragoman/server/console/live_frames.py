"""The frames of a request while it is answered, for its inspector in the console.

Those of a recorded request are read piece by piece from its recording, and are the entries that `capture show` has. Of
any other request, the last ones are kept from the moment on in which its inspector was opened. Secrets are masked.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from msgspec.structs import replace

from dragoman.net.headers import Header
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink
from dragoman.operate.captures.files import CaptureDescription, describe_capture
from dragoman.operate.captures.timeline import (
    EVENT_STREAM,
    FrameCutter,
    Side,
    TimelineEntry,
    describe_end,
    describe_event,
    describe_frame,
    describe_request,
    describe_run,
)
from dragoman.proxy.capture.format import Capture, Chunk, LookupName
from dragoman.proxy.capture.masking import mask_capture, to_text
from dragoman.proxy.capture.memory_bounds import HeadAndTail
from dragoman.proxy.capture.recording import Recording
from dragoman.proxy.capture.upstream_exchange import UpstreamExchange
from dragoman.proxy.request_record import RequestRecord
from dragoman.proxy.source import EventSource
from dragoman.translate.framing.redaction import SHORTEST, mask_text
from dragoman.translate.hub.events import Event
from dragoman.translate.protocols import find_client_keys

MAX_ENTRIES = 2000  # from the end, when it is read for the first time
MAX_TEXT = 4000  # characters of one entry
END_OF_EVENT = re.compile(rb"\n\r?\n")
EVENT_FIELDS = (b"data:", b"event:", b"id:", b":")  # with one of which an event begins

NoteFrames = Callable[[Sequence[object], Sequence[Event]], None]  # frames of the upstream, and what they mean


class LiveTimeline:
    """Reads what is new in a recording. `dropped` counts the entries that were there too early to be shown."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._upstreams: list[_UpstreamReader] = []
        self._client = _ResponseReader()
        self._has_client_head = False
        self._events_read = 0
        self._lookups_read = 0
        self.dropped = 0

    def read(self) -> list[TimelineEntry]:
        """Return the entries since the last call, in the order of time, at most MAX_ENTRIES."""
        entries = sorted(self._read_all(), key=lambda entry: entry.at)
        self.dropped += max(0, len(entries) - MAX_ENTRIES)
        secrets = sorted((one for one in self._recording.secrets if len(one) >= SHORTEST), key=len, reverse=True)
        return [replace(entry, text=mask_text(shorten(entry.text), secrets)) for entry in entries[-MAX_ENTRIES:]]

    def close(self) -> None:
        """Stop reading; the recording goes on."""

    def _read_all(self) -> Iterator[TimelineEntry]:
        exchanges = self._recording.upstream_exchanges
        for exchange in exchanges[len(self._upstreams) :]:
            self._upstreams.append(_UpstreamReader(exchange))
        for upstream in self._upstreams:
            yield from upstream.read()
        for lookup in self._recording.lookups[self._lookups_read :]:
            if lookup.name == LookupName.TOOL_RUN.value and isinstance(lookup.value, dict):
                yield from describe_run(lookup.value["value"])
        self._lookups_read = len(self._recording.lookups)
        events, self._events_read = self._recording.events.read_from(self._events_read)
        for at, _, event in events:
            yield TimelineEntry(at, "hub", describe_event(event))
        yield from self._read_client()

    def _read_client(self) -> Iterator[TimelineEntry]:
        response = self._recording.client_response
        if response is None:
            return
        frames = self._client.read(response.chunks, dict(response.headers).get("content-type", ""))
        if not self._has_client_head:
            self._has_client_head = True
            at = frames[0][0] if frames else self._recording.elapsed_s()
            content_type = dict(response.headers).get("content-type", "")
            yield TimelineEntry(at, "client", f"< {response.status} {content_type}")
        yield from (TimelineEntry(at, "client", text) for at, text in frames)


class _ResponseReader:
    """Reads the frames of a response that were not read yet."""

    def __init__(self) -> None:
        self._position = 0
        self._frames: FrameCutter | None = None

    def read(self, chunks: HeadAndTail[Chunk], content_type: str) -> list[tuple[float, str]]:
        if self._frames is None:
            self._frames = FrameCutter(content_type)
        new, self._position = chunks.read_from(self._position)
        return [frame for chunk in new for frame in self._frames.feed(chunk)]

    def finish(self) -> list[tuple[float, str]]:
        return [] if self._frames is None else list(self._frames.finish())


class _UpstreamReader:
    """Reads an exchange with an upstream: its request, its head, its frames and its end, each once."""

    def __init__(self, exchange: UpstreamExchange) -> None:
        self._exchange = exchange
        self._reader = _ResponseReader()
        self._shown = 0  # of request, head and end

    def read(self) -> Iterator[TimelineEntry]:
        exchange, response = self._exchange, self._exchange.response
        if self._shown == 0:
            self._shown = 1
            out = exchange.out
            yield TimelineEntry(exchange.at, "upstream", describe_request(out.method, out.url, len(out.body)))
        if response is None:
            if exchange.error and self._shown == 1:
                self._shown = 3
                yield TimelineEntry(exchange.at, "upstream", f"({exchange.error})")
            return
        content_type = dict(to_text(response.headers)).get("content-type", "")
        if self._shown == 1:
            self._shown = 2
            yield TimelineEntry(exchange.head_at, "upstream", f"< {response.status} {content_type}")
        frames = self._reader.read(exchange.chunks, content_type)
        if exchange.end and self._shown == 2:
            self._shown = 3
            frames += self._reader.finish()
            frames.append((exchange.ended_at, describe_end(exchange.end)))
        yield from (TimelineEntry(at, "upstream", text) for at, text in frames)


def describe_recording(capture: Capture, secrets: frozenset[bytes]) -> CaptureDescription:
    """Return what a recording holds so far, as the description of its capture would have it."""
    return describe_capture(mask_capture(capture, secrets))


def hide_content(entry: TimelineEntry) -> TimelineEntry:
    """Return an entry with its name and size only, for a key that may not read content."""
    name = entry.text.partition(" ")[0][:60]
    if not name.replace("_", "").replace(".", "").isalpha():
        name = "frame"
    return replace(entry, text=f"{name}, {len(entry.text)} characters")


def shorten(text: str) -> str:
    """Make a text short, and valid as JSON even if it has half a surrogate pair."""
    shown = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"
    return shown.encode(errors="replace").decode()


class TappedSource(EventSource):
    """A source that also passes on what it reads, from the middle of a reply on."""

    __slots__ = ("_note",)

    def __init__(self, note: NoteFrames, source: EventSource) -> None:
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

    def __init__(self, record: RequestRecord, request: HttpRequest, sink: ReplySink) -> None:
        self.readers = 0
        self.is_closed = False
        self._record: RequestRecord | None = record  # None once it has ended
        self._sink: ReplySink | None = sink  # likewise
        self._started_at = record.started_at
        self._entries: deque[TimelineEntry] = deque(maxlen=MAX_ENTRIES)
        self._added = 0
        self._tapped: object = None
        self._secrets: set[bytes] = set(find_client_keys(request.headers.fields, request.query))
        self._client: FrameCutter | None = None
        self._line_end = b""  # the last bytes of a response, as long as no event of it has ended
        if sink.listener is None:
            sink.listener = self
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
        if self._sink is not None and self._sink.listener is self:
            self._sink.listener = None
        self._record = self._sink = self._tapped = None

    def end(self) -> None:
        """Release the request, which has ended: what is kept can still be read. An error may still be sent."""
        self._record = self._tapped = None
        if self._sink is not None and self._sink.listener is not self:
            self._sink = None

    def _tap(self) -> None:
        """Follow the reply; each upstream request has one of its own."""
        reply = None if self._record is None else self._record.reply
        if reply is not None and reply is not self._tapped:
            self._tapped = reply
            self._secrets.update(reply.tap(partial(TappedSource, self._record_read)))

    def _record_read(self, frames: Sequence[object], events: Sequence[Event]) -> None:
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
        return round(time.time() - self._started_at, 6)

    # A listener of the client's sink

    def on_head(self, status: int, headers: Sequence[Header]) -> None:
        content_type = dict(headers).get(b"content-type", b"").decode("latin-1")
        self._client = FrameCutter(content_type)
        self._add(self._elapsed(), "client", f"< {status} {content_type}")

    def on_body(self, data: bytes) -> None:
        if self._client is None:
            data = self._skip_to_event(data)
        if data and self._client is not None:
            for at, text in self._client.feed(Chunk(self._elapsed(), data)):
                self._add(at, "client", text)

    def _skip_to_event(self, data: bytes) -> bytes:
        """Return what follows the first end of an event in a reply that began unseen; bytes before it are one text."""
        if data.startswith(EVENT_FIELDS):
            self._client = FrameCutter(EVENT_STREAM)
            return data
        joined = self._line_end + data
        if (end := END_OF_EVENT.search(joined)) is not None:
            self._client = FrameCutter(EVENT_STREAM)
            return joined[end.end() :]
        self._line_end = joined[-2:]
        if data:
            self._add(self._elapsed(), "client", data.decode(errors="replace"))
        return b""

    def on_end(self) -> None:
        self._sink = None


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

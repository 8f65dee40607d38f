"""The timeline of a request while it is answered, read piece by piece from its recording.

It has the entries that `capture show` has, made by the same functions, and masks the same secrets.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from dragoman.admin.captures import CaptureDescription, describe_capture
from dragoman.admin.timeline import (
    FrameReader,
    TimelineEntry,
    describe_end,
    describe_event,
    describe_request,
    describe_run,
)
from dragoman.flow.capture.format import Capture, Chunk, LookupName
from dragoman.flow.capture.masking import mask_capture, to_text
from dragoman.flow.capture.memory_bounds import HeadAndTail
from dragoman.flow.capture.recording import Recording, UpstreamExchange
from dragoman.framing.redaction import SHORTEST, mask_text

MAX_ENTRIES = 2000  # from the end, when it is read for the first time
MAX_TEXT = 4000  # characters of one entry


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
        """The recording goes on without a reader."""

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
        self._frames: FrameReader | None = None

    def read(self, chunks: HeadAndTail[Chunk], content_type: str) -> list[tuple[float, str]]:
        if self._frames is None:
            self._frames = FrameReader(content_type)
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

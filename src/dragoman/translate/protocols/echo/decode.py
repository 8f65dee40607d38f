"""Decode a native reply, streamed or whole, into hub events."""

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.translate.framing.sse import Broken
from dragoman.translate.hub.events import Ended, Event, Failed, OpaqueAdded, UsageReported
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer, Progress
from dragoman.translate.hub.usage import clamp_usage
from dragoman.translate.protocols.echo.wire import LINE, LINES, Line, read_event

_MAX_LINE_BYTES = 16 * 1024 * 1024
_UNREADABLE = (ValueError, RecursionError)


class LineFramer:
    """Split a byte stream into lines; an incomplete last line is dropped."""

    __slots__ = ("_broken", "_held", "_held_bytes", "_max_line_bytes")

    def __init__(self, max_line_bytes: int = _MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._broken = False

    def feed(self, chunk: bytes) -> list[bytes | Broken]:
        if self._broken:
            return []
        first, *rest = chunk.split(b"\n")
        self._hold(first)
        lines: list[bytes | Broken] = []
        for piece in rest:
            if self._held_bytes > self._max_line_bytes:
                break
            lines.append(b"".join(self._held))
            self._held.clear()
            self._held_bytes = 0
            self._hold(piece)
        lines = [line for line in lines if line]
        if self._held_bytes > self._max_line_bytes:
            self._broken = True
            self._held.clear()
            lines.append(Broken(f"a line is longer than {self._max_line_bytes} bytes"))
        return lines

    def finish(self) -> list[bytes | Broken]:
        return []

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._held.append(piece)
            self._held_bytes += len(piece)


class Decoder:
    """Decode one event from each line, up to the end or the first line that cannot be read."""

    __slots__ = ("_is_over", "_issuer", "_ledger")
    progress = Progress.READING

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._issuer = issuer
        self._ledger = ledger
        self._is_over = False

    def feed(self, frame: object) -> Sequence[Event]:
        if self._is_over:
            return ()
        if not isinstance(frame, bytes):
            return self._fail(Kind.CORRUPT, f"the reply cannot be read: {getattr(frame, 'why', frame)}")
        try:
            line = LINE.decode(frame)
        except _UNREADABLE:
            return self._fail(Kind.CORRUPT, "the reply has a line that is not an event")
        return (self.take(line),)

    def take(self, line: Line) -> Event:
        event = read_event(line)
        self._is_over = isinstance(event, Ended | Failed)
        if isinstance(event, OpaqueAdded):
            return OpaqueAdded(event.block, replace(event.opaque, issuer=self._issuer.name, model=self._issuer.model))
        if isinstance(event, UsageReported):
            return UsageReported(clamp_usage(event.usage, self._ledger))
        return event

    def finish(self) -> Sequence[Event]:
        return () if self._is_over else self._fail(Kind.TRUNCATED, "the reply ended without its terminal event")

    def _fail(self, kind: Kind, message: str) -> Sequence[Event]:
        self._is_over = True
        return (Failed(Failure(kind, message)),)


def decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """Return the events of a reply that is one JSON array."""
    try:
        lines = LINES.decode(body)
    except _UNREADABLE:
        return [Failed(Failure(Kind.CORRUPT, "the reply is not a list of events"))]
    decoder = Decoder(issuer, ledger)
    events: list[Event] = []
    for line in lines:
        events.append(decoder.take(line))
        if isinstance(events[-1], Ended | Failed):
            return events
    return [*events, *decoder.finish()]

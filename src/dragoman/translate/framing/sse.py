"""Read, write and rewrite server-sent events.

Reading follows the WHATWG event stream rules, with two deviations that real servers require:

* The last block counts even without its blank line, if it has data: several servers end with `data: [DONE]` and
  nothing after it. A block that was cut off looks the same, so a decoder must treat a last frame that does not parse
  as a truncated stream.
* `id` and `retry` are ignored: clients do not reconnect to a model's reply.

`Frame.data` is always valid UTF-8: an invalid byte becomes U+FFFD, as WHATWG requires, so it costs one character
and not the event. Everything else, NUL and trailing spaces included, is kept unchanged.
"""

import re
from collections.abc import Callable, Iterable

import msgspec

from dragoman.translate.framing.jsonread import replace_invalid_utf8

MAX_EVENT_BYTES = 16 * 1024 * 1024
KEEP_ALIVE = b": keep-alive\n\n"

_NAMED = re.compile(rb"event: ([^\n]*)\ndata: ([^\n]*)")
_BOM = b"\xef\xbb\xbf"


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event: its name, empty if it has none, and its data lines joined by LF."""

    event: str
    data: bytes


class Broken(msgspec.Struct, frozen=True, gc=False):
    """The stream cannot be read any further."""

    why: str


class SseFramer:
    """Split a byte stream into events. The result does not depend on how the input is cut into chunks."""

    __slots__ = ("_after_cr", "_broken", "_held", "_held_bytes", "_max_event_bytes", "_opening")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._opening: bytes | None = b""  # what may be a byte order mark; None once that is decided
        self._after_cr = False
        self._held: list[bytes] = []  # pieces of the incomplete block, joined when it ends
        self._held_bytes = 0
        self._broken = False

    def feed(self, chunk: bytes) -> list[Frame | Broken]:
        if self._opening is not None:
            chunk = self._strip_bom(self._opening + chunk)
        if self._after_cr or chunk.find(b"\r") >= 0:
            chunk = self._normalise_line_ends(chunk)
        if not chunk or self._broken:
            return []
        if self._held:
            if not (chunk.find(b"\n\n") >= 0 or (chunk[0] == 0x0A and self._held[-1].endswith(b"\n"))):
                return self._hold(chunk)
            self._held.append(chunk)
            chunk = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
        blocks = chunk.split(b"\n\n")
        tail = blocks.pop()
        if len(chunk) > self._max_event_bytes:
            blocks = self._check_sizes(blocks)
        frames = _read_blocks(blocks if chunk.isascii() else map(replace_invalid_utf8, blocks), self._read_lines)
        if self._broken:
            frames.append(self._too_large())
        elif tail:
            frames += self._hold(tail)
        return frames

    def finish(self) -> list[Frame | Broken]:
        tail = b"".join(self._held)
        self._held.clear()
        return [
            frame
            for frame in _read_blocks([replace_invalid_utf8(tail)], self._read_lines)
            if isinstance(frame, Frame) and frame.data
        ]

    @staticmethod
    def _read_lines(block: bytes) -> list[Frame]:
        """Read a block that has another form than nearly all events of models' streams."""
        return _read_lines(block)

    def _strip_bom(self, start: bytes) -> bytes:
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._opening = start
            return b""
        self._opening = None
        return start.removeprefix(_BOM)

    def _normalise_line_ends(self, chunk: bytes) -> bytes:
        # A CR ends its line at once. An LF at the start of the next chunk belongs to it.
        if not chunk:
            return chunk
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, piece: bytes) -> list[Frame | Broken]:
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes - piece.endswith(b"\n") <= self._max_event_bytes:
            return []
        self._broken = True
        self._held.clear()
        return [self._too_large()]

    def _check_sizes(self, blocks: list[bytes]) -> list[bytes]:
        for index, block in enumerate(blocks):
            if len(block) > self._max_event_bytes:
                self._broken = True
                return blocks[:index]
        return blocks

    def _too_large(self) -> Broken:
        return Broken(f"an event is larger than {self._max_event_bytes} bytes")


class SseOrJsonFramer(SseFramer):
    """Reads JSON that stands between events, or after the last one, as an event: Google reports errors that way."""

    __slots__ = ()

    @staticmethod
    def _read_lines(block: bytes) -> list[Frame]:
        # No field of an event begins with a brace or a bracket.
        text = block.strip()
        return [Frame("", text)] if text[:1] in (b"{", b"[") else _read_lines(block)


def encode_event(data: bytes, event: bytes = b"") -> bytes:
    """Return one event as bytes, for a single write."""
    if data.find(b"\n") >= 0 or data.find(b"\r") >= 0:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return b"event: %b\ndata: %b\n\n" % (event, data) if event else b"data: %b\n\n" % data


def _read_blocks(blocks: Iterable[bytes], read_lines: Callable[[bytes], list[Frame]]) -> list[Frame | Broken]:
    frames: list[Frame | Broken] = []
    for block in blocks:
        # Nearly all events of models' streams have one of two forms, which need not be read line by line.
        if block.startswith(b"data: ") and block.find(b"\n") < 0:
            frames.append(Frame("", block[6:]))
        elif named := _NAMED.fullmatch(block):
            frames.append(Frame(named[1].decode(), named[2]))
        else:
            frames += read_lines(block)
    return frames


def _read_lines(block: bytes) -> list[Frame]:
    event = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            event = value.removeprefix(b" ")
    return [Frame(event.decode(), b"\n".join(data))] if data else []


_END = re.compile(rb"\n\n|\r\n\r\n")
_DATA = re.compile(rb"^data: ?([^\r\n]*)$", re.MULTILINE)
_LONGEST_END = 4


class DataRewriter:
    """Apply a function to the data of each event; a Stage[bytes, bytes].

    Comments, names and line ends stay unchanged, and so does data of several lines.
    """

    __slots__ = ("_held", "_rewrite", "_searched")

    def __init__(self, rewrite: Callable[[bytes], bytes]) -> None:
        self._rewrite = rewrite
        self._held = bytearray()
        self._searched = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        self._held += chunk
        events: list[bytes] = []
        start = 0
        for end in _END.finditer(self._held, self._searched):
            events.append(self._rewrite_event(bytes(self._held[start : end.end()])))
            start = end.end()
        del self._held[:start]
        self._searched = max(0, len(self._held) - _LONGEST_END + 1)
        return events

    def finish(self) -> list[bytes]:
        """Pass on an incomplete last event."""
        rest, self._held = bytes(self._held), bytearray()
        return [self._rewrite_event(rest)] if rest else []

    def _rewrite_event(self, event: bytes) -> bytes:
        found = _DATA.findall(event)
        if len(found) != 1:
            return event
        data = self._rewrite(found[0])
        if data is found[0]:
            return event
        at = event.index(found[0], event.index(b"data:") + 5) if found[0] else len(event)
        return event[:at] + data + event[at + len(found[0]) :]

"""The bytes of a reply come in; its messages go out, be they AWS frames or, through a proxy or in a text, bare JSON."""

import re

from dragoman.framing.eventstream import EventStreamFramer, Message
from dragoman.framing.jsonscan import JsonScan
from dragoman.framing.sse import Broken

_DECIDING = 12  # the length of a frame's prelude, in which there is always a byte that no text has
_NO_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_UNFRAMED: dict[str, str] = {}


class KiroFramer:
    """Frames, unless the first bytes are text."""

    __slots__ = ("_frames", "_opening", "_scan")

    def __init__(self) -> None:
        self._opening = b""  # what has come, until it shows which it is
        self._frames: EventStreamFramer | None = None
        self._scan: JsonScan | None = None

    def feed(self, chunk: bytes) -> list[Message | Broken]:
        if self._frames is not None:
            return self._frames.feed(chunk)
        if self._scan is not None:
            return _unframed(self._scan.feed(chunk))
        opening = self._opening + chunk
        if _NO_TEXT.search(opening, 0, _DECIDING):
            self._frames = EventStreamFramer()
        elif len(opening) >= _DECIDING:
            self._scan = JsonScan()
        else:
            self._opening = opening
            return []
        return self.feed(opening)

    def finish(self) -> list[Message | Broken]:
        if self._frames is not None:
            return self._frames.finish()
        if self._scan is not None:
            return _unframed(self._scan.finish())
        scan = JsonScan()
        return _unframed(scan.feed(self._opening) + scan.finish())


def _unframed(found: list[bytes | Broken]) -> list[Message | Broken]:
    return [item if isinstance(item, Broken) else Message(_UNFRAMED, item) for item in found]

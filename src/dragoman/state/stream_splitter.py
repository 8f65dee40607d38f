"""Split a stream into its events, so that it can be resumed after each."""

import re
from collections.abc import Sequence
from typing import Protocol

from dragoman.translate.framing.jsonscan import IN_BYTES, BraceCounter

_BLOCK_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class StreamSplitter(Protocol):
    """Splits a stream into its events, without changing a byte."""

    def feed(self, data: bytes) -> Sequence[bytes]: ...
    @property
    def rest(self) -> bytes: ...  # what follows the last whole event


class EventSplitter:
    """Splits server-sent events."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> Sequence[bytes]:
        held, start, events = self._held, 0, []
        held += data
        for end in _BLOCK_END.finditer(held, self._searched):
            events.append(bytes(held[start : end.end()]))
            start = end.end()
        del held[:start]
        self._searched = max(0, len(held) - 3)  # the longest end of an event may be cut
        return events

    @property
    def rest(self) -> bytes:
        return bytes(self._held)


class ArraySplitter:
    """Splits a JSON array of objects: each event begins with what separates it from the one before."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._braces = BraceCounter(IN_BYTES)

    def feed(self, data: bytes) -> Sequence[bytes]:
        braces, events, start, at = self._braces, [], 0, 0
        while at < len(data):
            if not braces.depth:
                at = data.find(b"{", at) + 1
                if not at:
                    break
                braces.depth = 1
                continue
            at = braces.advance(data, at)
            if not braces.depth:
                events.append(b"".join((*self._held, data[start:at])))
                self._held.clear()
                start = at
        self._held.append(data[start:])
        return events

    @property
    def rest(self) -> bytes:
        return b"".join(self._held)

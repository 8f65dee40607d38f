"""An event stream comes in; the same bytes go out, except that one function may change the data of each event."""

import re
from collections.abc import Callable

_END = re.compile(rb"\n\n|\r\n\r\n")
_DATA = re.compile(rb"^data: ?([^\r\n]*)$", re.MULTILINE)
_LONGEST_END = 4


class DataRewriter:
    """Stage[bytes, bytes]. Comments, names and line ends stay as they are; data over several lines does too."""

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
            events.append(self._rewritten(bytes(self._held[start : end.end()])))
            start = end.end()
        del self._held[:start]
        self._searched = max(0, len(self._held) - _LONGEST_END + 1)
        return events

    def finish(self) -> list[bytes]:
        """What never came to its end passes as it is."""
        rest, self._held = bytes(self._held), bytearray()
        return [self._rewritten(rest)] if rest else []

    def _rewritten(self, event: bytes) -> bytes:
        found = _DATA.findall(event)
        if len(found) != 1:
            return event
        data = self._rewrite(found[0])
        if data is found[0]:
            return event
        at = event.index(found[0], event.index(b"data:") + 5) if found[0] else len(event)
        return event[:at] + data + event[at + len(found[0]) :]

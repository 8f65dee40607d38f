"""The bytes of a reply that passes, before its first token: held back, but for keep-alives."""

import re

BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
LONGEST_BLANK = 4


class HeldEvents:
    """The bytes of a reply before its first token. Complete comments and pings can be taken out of them."""

    __slots__ = ("_events", "_first", "_ping", "_rest", "_searched")

    def __init__(self, keep_alive: bytes) -> None:
        self._ping = keep_alive  # an event of this name is one
        self._first = b""  # what was added first, until more is: most replies begin with their first token
        self._events = bytearray()  # without keep-alives
        self._rest = bytearray()  # that was not searched for them
        self._searched = 0  # bytes of it that hold no end of an event

    def __len__(self) -> int:
        return len(self._first) + len(self._events) + len(self._rest)

    def add(self, data: bytes) -> None:
        if len(self):
            self._rest += self._first + data
            self._first = b""
        else:
            self._first = data

    def take(self) -> bytes:
        """Return everything; nothing is held afterwards."""
        held = self._first or bytes(self._events + self._rest)
        self._first, self._searched = b"", 0
        self._events.clear()
        self._rest.clear()
        return held

    def take_keep_alives(self) -> bytes:
        self._rest += self._first
        self._first = b""
        found, start = bytearray(), 0
        for end in [blank.end() for blank in BLANK_LINE.finditer(self._rest, self._searched)]:
            block = bytes(self._rest[start:end])
            (found if self._is_keep_alive(block) else self._events).extend(block)
            start = end
        del self._rest[:start]
        self._searched = max(0, len(self._rest) - LONGEST_BLANK + 1)
        return bytes(found)

    def _is_keep_alive(self, block: bytes) -> bool:
        lines = [line for line in block.splitlines() if line]
        if all(line.startswith(b":") for line in lines):
            return True
        name = _event_name(lines[0])
        return name != b"" and name == _event_name(self._ping.partition(b"\n")[0])


def _event_name(line: bytes) -> bytes:
    """Return the name in a line that names an event; empty if it is another."""
    field, _, name = line.partition(b":")
    return name.strip() if field == b"event" else b""

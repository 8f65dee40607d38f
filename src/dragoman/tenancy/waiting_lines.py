"""Lines of requests that wait until others have given back what they reserved.

A line waits for one counter, and is served in order: only its first asks, at once when something was settled here,
and from time to time, since other processes settle too.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from dragoman.translate.hub.failure import Failure, RequestError

MOST_WAITING = 1000  # requests in all lines of a process


class LinesFull(Exception):
    """The largest number of requests waits already."""


class Place:
    """The place of one request in a line. It must be left, however the waiting ends."""

    def __init__(self, lines: "WaitingLines", line: "deque[Place]", counter: str) -> None:
        self.counter = counter
        self._lines = lines
        self._line = line
        self._woken = asyncio.Event()
        self._verdict: Failure | None = None

    async def wait(self) -> None:
        """Wait until it is worth asking again. Raises RequestError if the line was ended."""
        while True:
            is_first = self._line[0] is self
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lines.pause_s() if is_first else None):
                    await self._woken.wait()
            self._woken.clear()
            if self._verdict is not None:
                raise RequestError(self._verdict)
            if self._line[0] is self:
                return

    def leave(self) -> None:
        """Let the next one ask."""
        was_first = self._line[0] is self
        self._line.remove(self)
        self._lines.count -= 1
        if not self._line:
            self._lines.remove(self.counter)
        elif was_first:
            self._line[0]._woken.set()

    def end(self, verdict: Failure) -> None:
        self._verdict = verdict
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()


class WaitingLines:
    """The lines of a process; `pause_s` returns how long the first of a line waits before it asks by itself."""

    def __init__(self, pause_s: Callable[[], float], most: int = MOST_WAITING) -> None:
        self.pause_s = pause_s
        self.count = 0
        self._most = most
        self._lines: dict[str, deque[Place]] = {}

    def find(self, counters: Iterable[str]) -> str | None:
        """Return the first of these counters that a line stands before."""
        if not self._lines:
            return None
        return next((counter for counter in counters if counter in self._lines), None)

    def join(self, counter: str) -> Place:
        """Return the last place in the line before a counter. Raises LinesFull."""
        if self.count >= self._most:
            raise LinesFull
        line = self._lines.setdefault(counter, deque())
        place = Place(self, line, counter)
        line.append(place)
        self.count += 1
        return place

    def wake(self, counters: Iterable[str]) -> None:
        """Let the first of the lines before these counters ask now."""
        if not self._lines:
            return
        for counter in counters:
            line = self._lines.get(counter)
            if line:
                line[0].wake()

    def end(self, counter: str, verdict: Failure) -> None:
        """End the waiting of all in the line before a counter."""
        for place in self._lines.get(counter, ()):
            place.end(verdict)

    def remove(self, counter: str) -> None:
        del self._lines[counter]

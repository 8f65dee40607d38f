"""Deadlines of a connection. Moving one later does not set a new timer, because that happens with every chunk."""

import asyncio
from collections.abc import Callable

from dragoman.net.limits import Limits


class Deadline:
    """A deadline with one timer, which is set again only when it fires too early."""

    __slots__ = ("_expire", "_loop", "_timer", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0
        self._expire: Callable[[], None] | None = None

    def set(self, seconds: float, expire: Callable[[], None]) -> None:
        self._when = self._loop.time() + seconds
        self._expire = expire
        if self._timer is None:
            self._timer = self._loop.call_at(self._when, self._fire)
        elif self._timer.when() > self._when:
            self._timer.cancel()
            self._timer = self._loop.call_at(self._when, self._fire)

    def clear(self) -> None:
        """Remove the deadline. The timer stays and does nothing when it fires, which is cheaper than cancelling it."""
        self._expire = None

    def close(self) -> None:
        self._expire = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        expire = self._expire
        if expire is None:
            return
        # uvloop counts in whole milliseconds, so a timer may fire a little early.
        if self._when - self._loop.time() > 0.001:
            self._timer = self._loop.call_at(self._when, self._fire)
            return
        self._expire = None
        expire()


class UploadTimer:
    """The time that a request body may take: a fixed part, and a part that grows with the bytes received."""

    __slots__ = ("_began", "_limits")

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._began = now

    def seconds_left(self, received: int, now: float) -> float:
        """Return the seconds within which more must arrive, given the bytes received so far."""
        limits = self._limits
        due = self._began + limits.body_timeout_s + received / limits.min_body_bytes_per_s
        return max(0.0, min(limits.body_gap_timeout_s, due - now))

    def timeout_message(self, received: int, now: float) -> str:
        seconds = now - self._began
        return f"The request body took too long: {received} bytes arrived in {seconds:.0f} s. Send the request again."

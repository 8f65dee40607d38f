"""The bounds that a client is held to by the server transport, and the timers that enforce those in seconds."""

import asyncio
import contextlib
import resource
import sys
from collections.abc import Callable

import msgspec

from dragoman.config.settings import ServerSettings

# Descriptors that are neither a client's connection nor an upstream's: the store, log, listeners, event loop.
OTHER_OPEN_FILES = 64
MIN_CONNECTIONS = 8


class ConnectionLimits(msgspec.Struct, frozen=True):
    max_header_bytes: int = 32 * 1024
    max_header_fields: int = 100
    max_body_bytes: int = 32 * 1024 * 1024
    max_connections: int = 8192
    header_timeout_s: float = 10.0
    body_gap_timeout_s: float = 30.0
    # A body may take this long, plus the time that its bytes so far need at the lowest rate we accept.
    body_timeout_s: float = 30.0
    min_body_bytes_per_s: float = 4096.0
    keep_alive_s: float = 75.0
    unauthenticated_keep_alive_s: float = 5.0  # between requests, until one of them carried a valid key
    write_idle_timeout_s: float = 120.0
    linger_s: float = 5.0  # how long a refused upload is read and thrown away, so that its sender sees the reply


def limits_for(server: ServerSettings) -> ConnectionLimits:
    """Return the limits that a configuration sets, with no more connections than the limit of open files allows."""
    limits = ConnectionLimits(max_body_bytes=server.max_body_bytes)
    most = min(limits.max_connections, connections_within(open_files_limit()))
    return msgspec.structs.replace(limits, max_connections=most)


def connections_within(open_files: int) -> int:
    """Return how many connections fit a limit of open files, where each may need one more to an upstream."""
    return max(MIN_CONNECTIONS, (open_files - OTHER_OPEN_FILES) // 2)


def open_files_limit() -> int:
    """Return how many files, connections included, this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_open_files_limit(target: int) -> None:
    """Raise the soft limit of open files towards `target`, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = target if hard == resource.RLIM_INFINITY else min(target, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Deadline:
    """A deadline with one timer. Moving it later, as every chunk does, sets no new timer until this one has fired."""

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

    __slots__ = ("_began", "_limits", "_paused_at")

    def __init__(self, limits: ConnectionLimits, now: float) -> None:
        self._limits = limits
        self._began = now
        self._paused_at = now

    def pause(self, now: float) -> None:
        """Stop counting while the body is not read."""
        self._paused_at = now

    def resume(self, now: float) -> None:
        self._began += now - self._paused_at

    def seconds_left(self, received: int, now: float) -> float:
        """Return the seconds within which more must arrive, given the bytes received so far."""
        limits = self._limits
        due = self._began + limits.body_timeout_s + received / limits.min_body_bytes_per_s
        return max(0.0, min(limits.body_gap_timeout_s, due - now))

    def timeout_message(self, received: int, now: float) -> str:
        seconds = now - self._began
        return f"The request body took too long: {received} bytes arrived in {seconds:.0f} s. Send the request again."


class BodyWait:
    """A handler's wait for a request body: for all of it, or for the next piece."""

    __slots__ = ("_deadline", "_expire", "_loop", "_takes_pieces", "_timer", "_waiter")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deadline: Deadline, limits: ConnectionLimits, expire: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._deadline = deadline
        self._expire = expire
        self._takes_pieces = False
        self._timer = UploadTimer(limits, loop.time())
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_waiting(self) -> bool:
        return self._waiter is not None

    async def wait(self, received: int, *, whole: bool) -> None:
        """Wait for the end of the body or, unless `whole`, for more of it; `received` bytes have come so far."""
        self._timer.resume(self._loop.time())
        self._takes_pieces = not whole
        self._waiter = self._loop.create_future()
        self.record_arrival(received, wakes=False)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if not whole:
                self._deadline.clear()
                self._timer.pause(self._loop.time())

    def record_arrival(self, received: int, *, wakes: bool = True) -> None:
        """Note how much of the body has come by now."""
        self._deadline.set(self._timer.seconds_left(received, self._loop.time()), self._expire)
        if self._takes_pieces and wakes:
            self.wake()

    def wake(self) -> None:
        wake(self._waiter)

    def timeout_message(self, received: int) -> str:
        return self._timer.timeout_message(received, self._loop.time())


def wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)

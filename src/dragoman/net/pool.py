"""The pool of connections to one origin."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from dragoman.net.errors import ConnectionLost, UpstreamTimeout
from dragoman.net.outbound import UpstreamConnection
from dragoman.net.write_batch import WriteBatch

Connect = Callable[[UpstreamConnection], Awaitable[UpstreamConnection]]


class ConnectionPool:
    """All connections to one origin with the same dial options, at most `limit` of them."""

    def __init__(
        self, where: str, connect: Connect, *, limit: int, idle_s: float, on_empty: Callable[[], None]
    ) -> None:
        self.where = where
        self._connect = connect
        self._limit = limit
        self._idle_s = idle_s
        self._on_empty = on_empty
        self._loop = asyncio.get_running_loop()
        self._outbox = WriteBatch()
        self._live: set[UpstreamConnection] = set()
        self._idle: list[UpstreamConnection] = []
        self._acquiring = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None

    async def acquire(self, timeout_s: float) -> UpstreamConnection:
        """Return the most recently used idle connection, or a new one; wait while the limit is reached."""
        self._acquiring += 1
        try:
            while True:
                connection = self.take_idle()
                if connection is not None:
                    return connection
                if len(self._live) < self._limit:
                    return await self._open_connection()
                await self._wait(timeout_s)
        finally:
            self._acquiring -= 1
            self._forget_if_unused()

    async def acquire_fresh(self, timeout_s: float) -> UpstreamConnection:
        """Return a new connection, to replace one that was stale."""
        self._acquiring += 1
        try:
            while len(self._live) >= self._limit:
                if self._idle:
                    self._idle.pop(0).abort()
                await self._wait(timeout_s)
            return await self._open_connection()
        finally:
            self._acquiring -= 1
            self._forget_if_unused()

    def release(self, connection: UpstreamConnection) -> None:
        """Take a connection back; it becomes idle if it can serve again, else it is aborted."""
        if self._drained is not None or not self._idle_s or not connection.end_exchange():
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._idle_s, self._expire)
        if self._waiters:
            self._wake()

    def drop_idle(self) -> None:
        """Abort all idle connections: after one was stale, the others probably are too."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def close(self) -> None:
        """Abort all connections and wait until their sockets are closed."""
        self._drained = self._loop.create_future()
        if self._sweep is not None:
            self._sweep.cancel()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self._make_closed_error())
        for connection in tuple(self._live):
            connection.abort()
        if self._live or self._acquiring:
            await self._drained

    def take_idle(self) -> UpstreamConnection | None:
        """Return the connection that was used last, if there is one that is still open."""
        oldest_good = self._loop.time() - self._idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > oldest_good and connection.is_quiet():
                return connection
            connection.abort()
        return None

    async def _open_connection(self) -> UpstreamConnection:
        connection = UpstreamConnection(self._loop, self.where, self._outbox, self._remove_lost)
        self._live.add(connection)
        try:
            await self._connect(connection)
            if self._drained is not None:
                raise self._make_closed_error()
            return connection
        except BaseException:
            connection.abort()
            self._remove_lost(connection)
            raise

    def _make_closed_error(self) -> ConnectionLost:
        return ConnectionLost(f"{self.where}: closed by us", sent=False, received=False)

    def _remove_lost(self, connection: UpstreamConnection) -> None:
        if connection not in self._live:
            return
        self._live.remove(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._wake()
        self._forget_if_unused()

    def _forget_if_unused(self) -> None:
        if self._live or self._acquiring:
            return
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._on_empty()

    async def _wait(self, timeout_s: float) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        granted = False
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
            granted = True
        except TimeoutError:
            raise UpstreamTimeout("connect", f"{self.where}: no free connection in time") from None
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not granted:
                # It was granted in the moment in which this wait ended: wake another waiter.
                self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _expire(self) -> None:
        """Close connections that were idle for too long; the list is ordered by age."""
        self._sweep = None
        now = self._loop.time()
        while self._idle and self._idle[0].idle_since + self._idle_s <= now:
            self._idle.pop(0).abort()
        if self._idle:
            self._sweep = self._loop.call_at(self._idle[0].idle_since + self._idle_s, self._expire)

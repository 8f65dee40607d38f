"""What is written to one client: sent with the writes of other connections, and not faster than the client reads."""

import asyncio

from dragoman.net.errors import ClientDisconnected
from dragoman.net.limits import wake
from dragoman.net.write_batch import WriteBatch

_WRITE_HIGH = 32 * 1024


class ClientWriter:
    """The half of a connection that writes."""

    __slots__ = ("_outbox", "_transport", "_unsent", "_unsent_bytes", "_waiters", "blocked")

    def __init__(self, transport: asyncio.Transport, outbox: WriteBatch) -> None:
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self.blocked = False  # the client reads more slowly than we write
        self._transport = transport
        self._outbox = outbox
        self._unsent: list[bytes] = []  # until the end of the event loop's turn
        self._unsent_bytes = 0
        self._waiters: list[asyncio.Future[None]] = []

    def write(self, data: bytes) -> bool:
        """Send bytes with the next batch; return False if the connection is being closed."""
        if self._transport.is_closing():
            return False
        unsent = self._unsent
        unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > _WRITE_HIGH:
            self.send_now()
        elif len(unsent) == 1:
            self._outbox.add(self)
        return True

    def send_now(self) -> None:
        unsent = self._unsent
        if unsent and not self._transport.is_closing():
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
        unsent.clear()
        self._unsent_bytes = 0

    async def wait_writable(self) -> None:
        """Wait while the client reads too slowly; raises ClientDisconnected."""
        while self.blocked:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._transport.is_closing():
            raise ClientDisconnected

    def unblock(self) -> None:
        self.blocked = False
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            wake(waiter)

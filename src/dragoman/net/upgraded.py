"""A connection whose protocol has changed: what arrives goes to its new reader, all else stays as it was."""

import asyncio
from collections.abc import Callable

ReceiveBytes = Callable[[bytes], None]


class UpgradedConnection(asyncio.Protocol):
    """Passes on what arrives; `connection` still writes, and notices the end."""

    def __init__(self, connection: asyncio.Protocol, receive: ReceiveBytes) -> None:
        self._connection = connection
        self._receive = receive

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

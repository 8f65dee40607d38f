"""Accept connections from one listening socket, also when the process has no descriptors left.

The event loop's own way of accepting costs a quarter of the CPU of ours, but it closes connections without a byte when
no descriptor is left. It is used where the limit of open files is out of reach of the connections that we take.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable

# Connections accepted before the event loop turns to the others; workers that share the socket get theirs.
_AT_ONCE = 16
_PAUSE_S = 0.1  # before the next try when the system cannot give us a connection
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_OUT_OF_MEMORY = (errno.ENOBUFS, errno.ENOMEM)

Connect = Callable[[], asyncio.Protocol]


class LoopAcceptor:
    """Lets the event loop accept connections, where nothing beyond that is needed."""

    def __init__(self, listening: socket.socket, connect: Connect, server: asyncio.Server) -> None:
        self._listening = listening
        self._connect = connect
        self._server = server

    @classmethod
    async def start(cls, listening: socket.socket, connect: Connect, backlog: int) -> "LoopAcceptor":
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        return cls(listening, connect, await loop.create_server(connect, sock=listening.dup(), backlog=backlog))

    async def accept_queued(self) -> None:
        """Accept the connections that are queued by now: closing the last copy of the socket would reset them."""
        self._server.close()
        last = CarefulAcceptor(self._listening.dup(), self._connect, lambda: b"")
        await last.accept_queued()
        last.close()

    def close(self) -> None:
        self._server.close()
        self._listening.close()


class CarefulAcceptor:
    """Hands each connection of a listening socket to a protocol.

    `refuse_bytes` is called when no descriptor is left: it may free some, and returns what to send to the client
    before its connection is closed.
    """

    def __init__(self, listening: socket.socket, connect: Connect, refuse_bytes: Callable[[], bytes]) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._connect = connect
        self._refuse_bytes = refuse_bytes
        self._loop = asyncio.get_running_loop()
        self._handing_over: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        # Closed for a moment to accept, and refuse, a connection when all other descriptors are in use.
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)
        self._loop.add_reader(listening.fileno(), self._accept_some)

    async def accept_queued(self) -> None:
        """Accept the connections that are queued by now: closing the last copy of the socket would reset them."""
        while self._accept_one():
            pass
        await asyncio.sleep(0)  # protocols hear of what was accepted before in the next turn of the loop
        if self._handing_over:
            await asyncio.wait(self._handing_over)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _accept_some(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._accept_one():
                return

    def _accept_one(self) -> bool:
        """Accept one connection; False if none is queued or none can be had now."""
        try:
            accepted, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            if error.errno in _OUT_OF_FILES:
                return self._refuse_one()
            self._pause_accepting()
            if error.errno in _OUT_OF_MEMORY:
                return False
            raise
        accepted.setblocking(False)
        task = self._loop.create_task(self._hand_over(accepted))
        self._handing_over.add(task)
        task.add_done_callback(self._handing_over.discard)
        return True

    async def _hand_over(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._connect, accepted)
        except OSError:  # the client is gone already
            accepted.close()

    def _refuse_one(self) -> bool:
        reply = self._refuse_bytes()
        if self._spare is None:
            self._pause_accepting()
            return False
        os.close(self._spare)
        self._spare = None
        try:
            accepted, _ = self._listening.accept()
        except OSError:
            self._pause_accepting()
        else:
            _send_and_close(accepted, reply)
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            self._pause_accepting()
        return self._pause is None

    def _pause_accepting(self) -> None:
        if self._pause is None:
            self._loop.remove_reader(self._listening.fileno())
            self._pause = self._loop.call_later(_PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._pause = None
        if self._spare is None:
            try:
                self._spare = os.open(os.devnull, os.O_RDONLY)
            except OSError:
                self._spare = None
        self._loop.add_reader(self._listening.fileno(), self._accept_some)


def _send_and_close(accepted: socket.socket, reply: bytes) -> None:
    """Send a reply as far as it goes without waiting; closing on unread bytes would reset it away."""
    accepted.setblocking(False)
    with accepted:
        try:
            accepted.send(reply)
            accepted.shutdown(socket.SHUT_WR)
            accepted.recv(65536)
        except OSError:
            return


Acceptor = LoopAcceptor | CarefulAcceptor

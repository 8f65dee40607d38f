"""An HTTP/1.1 server over asyncio with bounds on everything that a client can send."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from dragoman.net.bodies import ByteBudget
from dragoman.net.errors import (
    BodyTimeout,
    BodyTooLarge,
    ClientDisconnected,
    MalformedBody,
    RequestRejected,
    ResponseOrderError,
)
from dragoman.net.headers import Header, Headers
from dragoman.net.http_request import HttpRequest
from dragoman.net.inbound import TOO_MANY_CONNECTIONS, ClientConnection
from dragoman.net.limits import ConnectionLimits, open_files_limit
from dragoman.net.service import ConnectionService, RenderError
from dragoman.net.socket_sink import Handler, SocketSink, format_response_head
from dragoman.net.tasks import spawn

__all__ = [
    "BodyTimeout",
    "BodyTooLarge",
    "ClientDisconnected",
    "ConnectionLimits",
    "Handler",
    "Header",
    "Headers",
    "HttpRequest",
    "MalformedBody",
    "RenderError",
    "RequestRejected",
    "ResponseOrderError",
    "Server",
    "SocketSink",
]

_BACKLOG = 1024
# What the kernel may hold unsent for a slow reader, by default megabytes; accepted sockets inherit it.
_KERNEL_UNSENT_BYTES = 128 * 1024
# Descriptors kept for the 503 to clients when there are no others, and for files that the process opens meanwhile.
_SPARE_DESCRIPTORS = 24
_FREED_AT_ONCE = 16  # connections without a key that are closed when no descriptor is left
_FINAL_EVENT_S = 2.0  # time for a cancelled handler to send its last event
# Connections accepted before the event loop turns to the others; workers that share the socket get theirs.
_AT_ONCE = 16
_PAUSE_S = 0.1  # before the next try when the system cannot give us a connection
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_OUT_OF_MEMORY = (errno.ENOBUFS, errno.ENOMEM)

Connect = Callable[[], asyncio.Protocol]


class Server:
    """Accepts connections; `drain` and `close` return once all requests and connections have ended."""

    def __init__(
        self, handler: Handler, limits: ConnectionLimits, render_error: RenderError, budget: ByteBudget | None = None
    ) -> None:
        self._service = ConnectionService(handler, limits, render_error, budget)
        self._acceptor: Acceptor | None = None
        self._grace_over = asyncio.Event()
        self.port = 0

    async def start(self, host: str, port: int, *, sock: socket.socket | None = None) -> None:
        """Listen on host and port, or on a socket that is already bound."""
        listening = sock if sock is not None else await _listen(host, port)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL_UNSENT_BYTES)
        self.port = int(listening.getsockname()[1])
        self._service.highest_descriptor = open_files_limit() - _SPARE_DESCRIPTORS
        if open_files_limit() >= 2 * self._service.limits.max_connections + _BACKLOG:
            self._acceptor = await LoopAcceptor.start(listening, self._connect, _BACKLOG)
        else:
            self._acceptor = CarefulAcceptor(listening, self._connect, self._refuse_without_descriptor)

    def start_local(self, path: str) -> None:
        """Listen on a Unix socket; one that a dead process left at the same path is replaced."""
        with suppress(FileNotFoundError):
            os.unlink(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(path)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        self._service.highest_descriptor = open_files_limit() - _SPARE_DESCRIPTORS
        self._acceptor = CarefulAcceptor(listening, self._connect, self._refuse_without_descriptor)

    def set_limits(self, limits: ConnectionLimits) -> None:
        """Use these limits from the next request on."""
        self._service.limits = limits

    @property
    def connections(self) -> int:
        return len(self._service.connections)

    def begin_stop(self) -> None:
        """Serve on, but close each connection after its response, so that clients connect to the next process."""
        self._service.is_stopping = True

    def is_quiet(self, seconds: float) -> bool:
        """Return whether there is no connection now and no new one was made in the last `seconds`."""
        now = asyncio.get_running_loop().time()
        return not self._service.connections and now - self._service.last_admitted >= seconds

    async def stop_listening(self) -> None:
        """Accept the connections that are queued, then close the listening socket."""
        self._service.draining = self._service.is_stopping = True
        if self._acceptor is not None:
            await self._acceptor.accept_queued()
        self._close_listener()

    async def drain(self, grace_s: float) -> None:
        """Stop listening, let running requests end for up to `grace_s`, then cancel their handlers.

        A handler cancelled here finds that its reader is not gone, and may still send a terminal event.
        """
        await self.stop_listening()
        for connection in tuple(self._service.connections):
            connection.retire()
        waits = [spawn(self._wait_empty(grace_s), name="drain"), spawn(self._grace_over.wait(), name="end of grace")]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        await self._end_all()

    def end_grace(self) -> None:
        """End the grace period of `drain` now."""
        self._grace_over.set()

    @property
    def is_grace_over(self) -> bool:
        return self._grace_over.is_set()

    async def close(self) -> None:
        """Abort all connections."""
        self._close_listener()
        for connection in tuple(self._service.connections):
            connection.abort()
        await self._end_all()

    def _connect(self) -> ClientConnection:
        return ClientConnection(self._service)

    def _close_listener(self) -> None:
        self._service.draining = self._service.is_stopping = True
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def _refuse_without_descriptor(self) -> bytes:
        """Return the response for a client whose connection has no descriptor left."""
        service = self._service
        service.admission.log_shortage("no file descriptor is left for a new connection: raise `ulimit -n`")
        service.admission.evict_oldest(_FREED_AT_ONCE)
        fields, body = service.render_error("", 503, TOO_MANY_CONNECTIONS)
        framing = b"content-length: %d\r\nconnection: close\r\n" % len(body)
        return format_response_head(503, fields, framing) + body

    async def _end_all(self) -> None:
        for sink in tuple(self._service.requests):
            self._service.cancel(sink)
        await self._wait_empty(_FINAL_EVENT_S)
        for connection in tuple(self._service.connections):
            connection.abort()
        await self._wait_empty(_FINAL_EVENT_S)

    async def _wait_empty(self, seconds: float) -> None:
        self._service.signal_if_empty()
        try:
            async with asyncio.timeout(seconds):
                await self._service.empty.wait()
        except TimeoutError:
            return


async def _listen(host: str, port: int) -> socket.socket:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)


class LoopAcceptor:
    """Lets the event loop accept connections: this takes a quarter of the CPU of CarefulAcceptor.

    It closes connections without a byte when no descriptor is left, so it is used where the limit of open files is
    out of reach of the connections that we take.
    """

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
        await asyncio.sleep(0)  # protocols are called in the next turn of the loop for what was accepted before
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

"""An HTTP/1.1 server over asyncio with bounds on everything that a client can send."""

import asyncio
import os
import socket
from contextlib import suppress

from dragoman.net.acceptor import Acceptor, CarefulAcceptor, LoopAcceptor
from dragoman.net.bodies import ByteBudget
from dragoman.net.errors import (
    BodyTimeout,
    BodyTooLarge,
    ClientDisconnected,
    MalformedBody,
    RequestRejected,
    ResponseOrderError,
)
from dragoman.net.exchange import Exchange, Handler, format_response_head
from dragoman.net.headers import Header, Headers
from dragoman.net.inbound import TOO_MANY_CONNECTIONS, ClientConnection
from dragoman.net.limits import Limits, open_files_limit
from dragoman.net.service import RenderError, Service
from dragoman.net.tasks import spawn

__all__ = [
    "BodyTimeout",
    "BodyTooLarge",
    "ClientDisconnected",
    "Exchange",
    "Handler",
    "Header",
    "Headers",
    "Limits",
    "MalformedBody",
    "RenderError",
    "RequestRejected",
    "ResponseOrderError",
    "Server",
]

_BACKLOG = 1024
# What the kernel may hold unsent for a slow reader, by default megabytes; accepted sockets inherit it.
_KERNEL_UNSENT_BYTES = 128 * 1024
# Descriptors kept for the 503 to clients when there are no others, and for files that the process opens meanwhile.
_SPARE_DESCRIPTORS = 24
_FREED_AT_ONCE = 16  # connections without a key that are closed when no descriptor is left
_FINAL_EVENT_S = 2.0  # time for a cancelled handler to send its last event


class Server:
    """Accepts connections; `drain` and `close` return once all requests and connections have ended."""

    def __init__(
        self, handler: Handler, limits: Limits, render_error: RenderError, budget: ByteBudget | None = None
    ) -> None:
        self._service = Service(handler, limits, render_error, budget)
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

    def set_limits(self, limits: Limits) -> None:
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
        """Stop listening, let running exchanges end for up to `grace_s`, then cancel their handlers.

        A handler cancelled here finds its exchange not `gone`, and may still send a terminal event.
        """
        await self.stop_listening()
        for connection in tuple(self._service.connections):
            connection.retire()
        await self._wait_until_empty(grace_s)
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
        for task in tuple(self._service.tasks):
            task.cancel()
        await self._wait_empty(_FINAL_EVENT_S)
        for connection in tuple(self._service.connections):
            connection.abort()
        await self._wait_empty(_FINAL_EVENT_S)

    async def _wait_until_empty(self, seconds: float) -> None:
        waits = [spawn(self._wait_empty(seconds), name="drain"), spawn(self._grace_over.wait(), name="end of grace")]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

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

"""The listening socket: bound, or taken over from a gateway that drains, and handed on (docs/adr/0032-hand-over.md)."""

import asyncio
import errno
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from msgspec import Struct

from dragoman.config.settings import ServerSettings
from dragoman.operate import AdminError
from dragoman.operate.configuration.effective import base_url
from dragoman.operate.gateway.gateway_process import find_process
from dragoman.operate.gateway.running_gateway import read_version
from dragoman.translate.hub.failure import describe_cause

log = logging.getLogger(__name__)

BACKLOG = 1024
BIND_RETRY_S = 0.5
BIND_PAUSE_S = 0.05

GREETING = b"dragoman listening socket 1\n"
READY = b"ready\n"
SUCCESSOR_START_S = 60.0  # how long a successor may take to accept connections once it has the socket
HAND_OVER_S = 2.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class ListenAddress(Struct, frozen=True):
    """Where a socket listens."""

    host: str
    port: int


class Predecessor:
    """The draining gateway whose socket was taken over; it accepts connections until it is released."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def release(self) -> None:
        """Tell the predecessor that this gateway accepts connections now."""
        with self._connection:
            try:
                self._connection.sendall(READY)
            except OSError as error:
                log.debug("the previous gateway has already ended: %s", describe_cause(error))


class Bound(Struct, frozen=True):
    """A listening socket, and the draining gateway that it was taken over from, if any."""

    sock: socket.socket
    predecessor: Predecessor | None = None

    def release_predecessor(self) -> None:
        """Tell the draining gateway to stop accepting connections: this one accepts them now."""
        if self.predecessor is not None:
            self.predecessor.release()


def bind(server: ServerSettings) -> Bound:
    """Listen at the configured address, or take over the socket of a gateway that drains there.

    A gateway offers its socket shortly after it begins to stop, so the address is tried for BIND_RETRY_S.
    """
    family, address = _resolve(server)
    until = time.monotonic() + BIND_RETRY_S
    while True:
        try:
            return Bound(_listen(family, address))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                taken = take_over(ListenAddress(*address))
                if taken is not None:
                    return Bound(*taken)
                if time.monotonic() < until:
                    time.sleep(BIND_PAUSE_S)
                    continue
            raise AdminError(_explain(server, error)) from error


def _listen(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)  # shared by all workers: one that comes too late must not block in accept()
    except OSError:
        sock.close()
        raise
    return sock


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def _resolve(server: ServerSettings) -> tuple[socket.AddressFamily, tuple[str, int]]:
    # As bytes where possible: for text, the standard library loads its tables for international names.
    host = server.host.encode() if server.host.isascii() else server.host
    try:
        found = socket.getaddrinfo(host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise AdminError(
            f'server.host "{server.host}" is not an address of this machine: {describe_cause(error)}'
        ) from error
    # localhost means 127.0.0.1 to most clients, whatever the resolver puts first.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _explain(server: ServerSettings, error: OSError) -> str:
    where = f"{server.host}:{server.port}"
    match error.errno:
        case errno.EADDRINUSE:
            other = f"choose another port: dragoman serve --port {server.port + 1}"
            root = base_url(server.host, server.port)
            if asyncio.run(read_version(root)) is None:
                return f"{where} is in use by another program. Stop it, or {other}"
            process = find_process(os.environ, root)
            which = "" if process is None else f" (process {process.pid})"
            return (
                f"{where} is in use: a gateway is already running there{which}; `dragoman status` shows it.\n"
                f"Stop it first: dragoman stop --url {root}; or {other}"
            )
        case errno.EACCES:
            return f"This user may not listen on {where}. Use a port from 1024 up: dragoman serve --port 8484"
        case errno.EADDRNOTAVAIL:
            return f'server.host "{server.host}" is not an address of this machine; 127.0.0.1 always is.'
        case _:
            return f"Cannot listen on {where}: {describe_cause(error)}"


class Offer:
    """The draining gateway's side: give the listening socket to the first successor that starts."""

    def __init__(self, listening: socket.socket, on_taken: Callable[[], None]) -> None:
        self.is_starting = False  # a successor has the socket and does not accept connections yet
        self.is_taken = False
        self._on_taken = on_taken
        self._listening = listening.dup()
        self._control = _open_control(address_of(listening))
        if self._control is not None:
            threading.Thread(target=self._serve, args=(self._control,), name="hand-over", daemon=True).start()

    def close(self) -> None:
        """Withdraw the offer; a successor that has the socket keeps it."""
        if self._control is not None:
            try:
                self._control.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
            except OSError as error:
                log.debug("the hand-over was already closed: %s", describe_cause(error))
            self._control.close()
        self._listening.close()

    def _serve(self, control: socket.socket) -> None:
        while not self.is_taken:
            try:
                connection, _ = control.accept()
            except OSError:
                return
            with connection:
                self._give(connection)
        self._on_taken()

    def _give(self, connection: socket.socket) -> None:
        if _peer_uid(connection) != os.getuid():
            return
        self.is_starting = True
        try:
            connection.settimeout(SUCCESSOR_START_S)
            socket.send_fds(connection, [GREETING], [self._listening.fileno()])
            self.is_taken = connection.recv(len(READY)) == READY
        except (OSError, ValueError) as error:
            log.warning("the listening socket could not be handed over: %s", describe_cause(error))
        finally:
            self.is_starting = False


def take_over(address: ListenAddress) -> tuple[socket.socket, Predecessor] | None:
    """Return the listening socket of a gateway of this user that drains at `address`, or None."""
    if not _is_supported():
        return None
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.settimeout(HAND_OVER_S)
        control.connect(_control_name(address))
        if _peer_uid(control) != os.getuid():
            control.close()
            return None
        greeting, descriptors, _, _ = socket.recv_fds(control, len(GREETING), 1)
    except OSError:
        control.close()
        return None
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    if greeting == GREETING and len(sockets) == 1 and _listens_at(sockets[0], address):
        sockets[0].setblocking(False)
        return sockets[0], Predecessor(control)
    for received in sockets:
        received.close()
    control.close()
    return None


def address_of(listening: socket.socket) -> ListenAddress:
    host, port = listening.getsockname()[:2]
    return ListenAddress(str(host), int(port))


def _listens_at(received: socket.socket, address: ListenAddress) -> bool:
    is_listening = bool(received.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return is_listening and address_of(received) == address


def _open_control(address: ListenAddress) -> socket.socket | None:
    if not _is_supported():
        return None
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.bind(_control_name(address))
        control.listen()
    except OSError as error:
        log.warning("a new gateway cannot take over the connections of this one: %s", describe_cause(error))
        control.close()
        return None
    return control


def _is_supported() -> bool:
    """Return whether there are abstract socket names, which belong to the network namespace as ports do: on Linux."""
    return sys.platform == "linux"


def _control_name(address: ListenAddress) -> str:
    return f"\0dragoman/hand-over/{os.getuid()}/{address.host}/{address.port}"


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)

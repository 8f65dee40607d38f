"""Bind the listening socket, or take it over from a gateway that is draining."""

import asyncio
import errno
import os
import socket
import time
from contextlib import suppress

from msgspec import Struct

from dragoman.admin.configuration import base_url
from dragoman.admin.errors import AdminError
from dragoman.admin.running_gateway import read_version
from dragoman.cli.serving.handover import Address, Predecessor, take_over
from dragoman.config import Server

BACKLOG = 1024
RETRY_S = 0.5
RETRY_PAUSE_S = 0.05
MAX_SOCKET_PATH = 100  # bytes; macOS has the lowest limit, 103


class Bound(Struct, frozen=True):
    """A listening socket, and the draining gateway that it was taken over from, if any."""

    sock: socket.socket
    predecessor: Predecessor | None = None

    def release_predecessor(self) -> None:
        """Tell the draining gateway to stop accepting connections: this one accepts them now."""
        if self.predecessor is not None:
            self.predecessor.release()


def bind(server: Server) -> Bound:
    """Listen at the configured address, or take over the socket of a gateway that drains there.

    A gateway offers its socket shortly after it begins to stop, so the address is tried for RETRY_S.
    """
    family, address = _resolve(server)
    until = time.monotonic() + RETRY_S
    while True:
        try:
            return Bound(_listen(family, address))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                taken = take_over(Address(*address))
                if taken is not None:
                    return Bound(*taken)
                if time.monotonic() < until:
                    time.sleep(RETRY_PAUSE_S)
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


def make_socket_directory(workers: int) -> str:
    """Make a directory for the workers' own sockets that only this user can enter; its path is short enough for them.

    Raises AdminError if neither the directory for temporary files nor /tmp can be used.
    """
    import tempfile  # 1 MB, only for several workers

    for parent in (tempfile.gettempdir(), "/tmp"):
        with suppress(OSError):
            directory = tempfile.mkdtemp(prefix="dragoman-", dir=parent)
            if len(f"{directory}/{workers}".encode()) <= MAX_SOCKET_PATH:
                return directory
            os.rmdir(directory)
    raise AdminError("No directory for the sockets of the workers can be made. Set TMPDIR to a short path.")


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def _resolve(server: Server) -> tuple[socket.AddressFamily, tuple[str, int]]:
    # As bytes where possible: for text, the standard library loads its tables for international names.
    host = server.host.encode() if server.host.isascii() else server.host
    try:
        found = socket.getaddrinfo(host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise AdminError(f'server.host "{server.host}" is not an address of this machine: {error.strerror}') from error
    # localhost means 127.0.0.1 to most clients, whatever the resolver puts first.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _explain(server: Server, error: OSError) -> str:
    where = f"{server.host}:{server.port}"
    match error.errno:
        case errno.EADDRINUSE:
            other = f"choose another port: dragoman serve --port {server.port + 1}"
            if asyncio.run(read_version(base_url(server.host, server.port))) is None:
                return f"{where} is in use by another program. Stop it, or {other}"
            return (
                f"{where} is in use: a gateway runs there already; `dragoman status` shows it.\n"
                f"Stop it first, and the new one takes over its connections; or {other}"
            )
        case errno.EACCES:
            return f"This user may not listen on {where}. Use a port from 1024 up: dragoman serve --port 8484"
        case errno.EADDRNOTAVAIL:
            return f'server.host "{server.host}" is not an address of this machine; 127.0.0.1 always is.'
        case _:
            return f"Cannot listen on {where}: {error.strerror}"

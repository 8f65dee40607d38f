"""Host and port come in; a bound socket goes out, or the reason why not and what to do."""

import errno
import socket

from dragoman.cli.faults import Trouble
from dragoman.cli.settings import base_url
from dragoman.config import Server

BACKLOG = 1024


def bind(server: Server) -> socket.socket:
    family, address = _resolve(server)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise Trouble(_reason(server, error)) from error
    return sock


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def _resolve(server: Server) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise Trouble(f'server.host "{server.host}" is no address of this machine: {error.strerror}') from error
    # localhost means 127.0.0.1 to most clients, whatever the resolver puts first.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _reason(server: Server, error: OSError) -> str:
    where = f"{server.host}:{server.port}"
    match error.errno:
        case errno.EADDRINUSE:
            url = base_url(server.host, server.port)
            return (
                f"{where} is in use. If that is a dragoman already ({url}/health tells), there is nothing to start.\n"
                "Otherwise choose another port: dragoman serve --port 8485, or `port` under [server] in dragoman.toml."
            )
        case errno.EACCES:
            return f"this user may not listen on {where}; ports from 1024 up are for all: dragoman serve --port 8484"
        case errno.EADDRNOTAVAIL:
            return f'server.host "{server.host}" is no address of this machine; 127.0.0.1 always is.'
        case _:
            return f"cannot listen on {where}: {error.strerror}"

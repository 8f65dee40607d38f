"""Pass the listening socket from a gateway that drains to the one that replaces it (docs/adr/0032-hand-over.md)."""

import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable

from msgspec import Struct

log = logging.getLogger(__name__)

GREETING = b"dragoman listening socket 1\n"
READY = b"ready\n"
START_S = 60.0  # how long a successor may take to accept connections once it has the socket
ANSWER_S = 2.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Address(Struct, frozen=True):
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
                log.debug("the previous gateway has ended already: %s", error)


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
                log.debug("the hand-over was closed already: %s", error)
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
            connection.settimeout(START_S)
            socket.send_fds(connection, [GREETING], [self._listening.fileno()])
            self.is_taken = connection.recv(len(READY)) == READY
        except (OSError, ValueError) as error:
            log.warning("the listening socket could not be handed over: %s", error)
        finally:
            self.is_starting = False


def take_over(address: Address) -> tuple[socket.socket, Predecessor] | None:
    """Return the listening socket of a gateway of this user that drains at `address`, or None."""
    if not _is_supported():
        return None
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.settimeout(ANSWER_S)
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


def address_of(listening: socket.socket) -> Address:
    host, port = listening.getsockname()[:2]
    return Address(str(host), int(port))


def _listens_at(received: socket.socket, address: Address) -> bool:
    is_listening = bool(received.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return is_listening and address_of(received) == address


def _open_control(address: Address) -> socket.socket | None:
    if not _is_supported():
        return None
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.bind(_control_name(address))
        control.listen()
    except OSError as error:
        log.warning("a new gateway cannot take over the connections of this one: %s", error)
        control.close()
        return None
    return control


def _is_supported() -> bool:
    """Return whether there are abstract socket names, which belong to the network namespace as ports do: on Linux."""
    return sys.platform == "linux"


def _control_name(address: Address) -> str:
    return f"\0dragoman/hand-over/{os.getuid()}/{address.host}/{address.port}"


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)

"""The server's side of a WebSocket on an exchange: wsproto reads and writes the frames."""

import asyncio
import base64
import binascii
import hashlib
import time

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from dragoman.net.errors import BufferBudgetExceeded
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header, Headers, asks_for_websocket

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
UNSUPPORTED_DATA, TOO_BIG, TRY_AGAIN = 1003, 1009, 1013
MAX_WAITING = 256  # messages that are not taken yet


def wants_websocket(headers: Headers) -> bool:
    """Return whether a request asks for a WebSocket that we can open."""
    return asks_for_websocket(headers) and headers.get(b"sec-websocket-version") == b"13" and _has_key(headers)


def _has_key(headers: Headers) -> bool:
    try:
        return len(base64.b64decode(headers.get(b"sec-websocket-key") or b"", validate=True)) == 16
    except binascii.Error:
        return False


class WebSocket:
    """Text messages in both directions, until one side closes.

    Compression is declined: wsproto inflates without a bound, so that a few kilobytes could fill the memory.
    """

    def __init__(self, exchange: Exchange, max_bytes: int) -> None:
        self._exchange = exchange
        self._max_bytes = max_bytes
        self._frames = Connection(ConnectionType.SERVER)
        self._messages: asyncio.Queue[str | None] = asyncio.Queue()
        self._pieces: list[str] = []
        self._size = 0
        self.received_at = time.monotonic()  # of the last bytes from the client

    def accept(self, *fields: Header) -> None:
        """Answer the handshake, with these header fields."""
        key = self._exchange.headers.get(b"sec-websocket-key") or b""
        token = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
        head = [(b"upgrade", b"websocket"), (b"sec-websocket-accept", token), *fields]
        self._exchange.upgrade(head, self._receive)

    async def receive(self) -> str | None:
        """Return the next message, to be released later; None once the connection is closed."""
        return await self._messages.get()

    def release(self, message: str) -> None:
        """Count the bytes of a message that is no longer held."""
        share = self._exchange.buffered
        share.release_to(max(0, share.held - len(message)))

    @property
    def is_open(self) -> bool:
        return self._frames.state is ConnectionState.OPEN and not self._exchange.gone

    @property
    def blocked(self) -> bool:
        """Whether the client reads more slowly than we write."""
        return self._exchange.is_blocked

    async def wait_writable(self) -> None:
        await self._exchange.wait_writable()

    def send(self, text: str) -> None:
        if self.is_open:
            self._exchange.write(self._frames.send(TextMessage(text)))

    def ping(self) -> None:
        if self.is_open:
            self._exchange.write(self._frames.send(Ping()))

    def close(self, code: int, reason: str = "") -> None:
        """Close the connection; messages that wait are forgotten."""
        if self.is_open:
            self._exchange.write(self._frames.send(CloseConnection(code, reason)))
        self._messages.put_nowait(None)

    def _receive(self, data: bytes) -> None:
        self.received_at = time.monotonic()
        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                self._take(event)
        except RemoteProtocolError as error:
            hint = error.event_hint
            self.close(hint.code if isinstance(hint, CloseConnection) else 1002)
        except LocalProtocolError:
            self._messages.put_nowait(None)

    def _take(self, event: object) -> None:
        match event:
            case TextMessage(data=text, message_finished=is_whole):
                self._add(text, is_whole=is_whole)
            case BytesMessage():
                self.close(UNSUPPORTED_DATA, "messages are JSON text")
            case Ping():
                if not self.blocked:  # a client that does not read needs no answers
                    self._exchange.write(self._frames.send(event.response()))
            case CloseConnection():
                if self._frames.state is ConnectionState.REMOTE_CLOSING:
                    self._exchange.write(self._frames.send(event.response()))
                self._messages.put_nowait(None)
            case Pong():
                return
            case _:
                raise AssertionError(f"wsproto has a new event: {event!r}")

    def _add(self, text: str, *, is_whole: bool) -> None:
        self._pieces.append(text)
        self._size += len(text)
        try:
            self._exchange.buffered.hold(len(text))
        except BufferBudgetExceeded:
            self.close(TRY_AGAIN, "the gateway holds as many bytes as it may (server.max_buffered_mb)")
            return
        if self._size > self._max_bytes:
            self.close(TOO_BIG, "the message is too large (server.max_body_mb)")
        elif self._messages.qsize() >= MAX_WAITING:
            if self.blocked:  # it would not read the reason either
                self._exchange.abort()
            self.close(TRY_AGAIN, "too many messages wait")
        elif is_whole:
            message, self._pieces, self._size = "".join(self._pieces), [], 0
            self._messages.put_nowait(message)

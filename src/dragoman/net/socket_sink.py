"""The reply to a request that came over a connection: its head, its chunks and its end as bytes of HTTP/1.1."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from msgspec import Struct

from dragoman.net.errors import ClientDisconnected, ResponseOrderError
from dragoman.net.headers import Header
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplyListener, SinkPhase, echo_id

_log = logging.getLogger(__name__)

# Framing and the end of the connection are decided here; fields of a handler are left out.
_OWN = frozenset({b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"trailer"})
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_OPEN, _BEGUN, _SENT, _ENDED, _ABORTED = SinkPhase  # looked up for each write of a stream


class SinkWriter(Protocol):
    """What a sink writes to."""

    @property
    def blocked(self) -> bool: ...
    def write(self, data: bytes) -> bool: ...
    async def wait_writable(self) -> None: ...


class SinkConnection(Protocol):
    """What a sink needs of its connection."""

    @property
    def writer(self) -> SinkWriter: ...
    def must_close(self, sink: "SocketSink") -> bool: ...
    def end_reply(self, sink: "SocketSink") -> None: ...
    def drop(self, sink: "SocketSink") -> None: ...
    def take_over(self, head: bytes, receive: Callable[[bytes], None]) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class SocketSink(Struct, eq=False):
    """The reply to one request of a connection. The handler owns it until the reply has ended.

    A client that closes its connection, or only its sending half (no client known to us half-closes and still reads),
    has given up: the handler's task is cancelled. From the last byte of the request's body on, that waits for
    `allow_leaving`: only the handler knows whether the request is one that is answered without its client, too.
    """

    _connection: SinkConnection
    modern: bool  # the client speaks HTTP/1.1, as opposed to 1.0
    keep_alive: bool
    _is_head: bool  # the request's method is HEAD
    phase: SinkPhase = _OPEN
    reader_gone: bool = False  # the client has disconnected
    listener: ReplyListener | None = None
    echoed_id: bytes = b""
    task: asyncio.Task[None] | None = None  # of the handler
    _on_reader_gone: Callable[[], None] | None = None  # called then, instead of cancelling the handler
    _may_leave: bool = False  # the handler is cancelled then, even if the request's body is complete
    _held: bytes = b""
    _chunked: bool = False
    _bodiless: bool = False

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send a whole reply in one write; it replaces a head that `begin` made and that was not sent yet."""
        phase = self.phase
        if self.reader_gone or phase is _ABORTED:
            return
        if phase is not _OPEN and phase is not _BEGUN:
            raise ResponseOrderError("a reply was already sent")
        if self.echoed_id:
            headers = echo_id(headers, self.echoed_id)
        framing = b"" if status == 204 or status == 304 else b"content-length: %d\r\n" % len(body)
        if self._connection.must_close(self):
            self.keep_alive = False
            framing += _CLOSE
        head = format_response_head(status, headers, framing)
        if self.listener is not None:
            self.listener.on_head(status, headers)
            self.listener.on_body(body)
        if self._held:
            self._held = b""
        self._connection.writer.write(head if self._is_head or status == 204 or status == 304 else head + body)
        self.phase = _ENDED
        self._connection.end_reply(self)

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a streamed reply: chunked, or up to the end of the connection for HTTP/1.0."""
        if self.reader_gone or self.phase is _ABORTED:
            return
        if self.phase is not _OPEN:
            raise ResponseOrderError("a reply was already begun")
        if self.echoed_id:
            headers = echo_id(headers, self.echoed_id)
        self._bodiless = self._is_head or status == 204 or status == 304
        self._chunked = self.modern and status != 204 and status != 304
        framing = _CHUNKED if self._chunked else b""
        if self._connection.must_close(self):
            self.keep_alive = False
            framing += _CLOSE
        self._held = format_response_head(status, headers, framing)
        if self.listener is not None:
            self.listener.on_head(status, headers)
        self.phase = _BEGUN

    def upgrade(self, headers: Sequence[Header], receive: Callable[[bytes], None]) -> None:
        """Change to another protocol (HTTP 101): what arrives is passed to `receive`, and `write` sends bytes as is."""
        self.phase, self.keep_alive = _SENT, False
        if self.echoed_id:
            headers = echo_id(headers, self.echoed_id)
        self._connection.take_over(format_response_head(101, headers, b"connection: Upgrade\r\n"), receive)

    def pause_reading(self) -> None:
        """Leave what the client sends in its socket."""
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._connection.resume_reading()

    async def send(self, data: bytes) -> None:
        """Write, and wait while the client reads too slowly. Empty data sends only a head that is still held."""
        if not self.write(data):
            await self.wait_writable()

    def write(self, data: bytes) -> bool:
        """Write without waiting. After False, call `wait_writable` before the next write."""
        if self.phase is not _SENT or self.reader_gone:
            return self._write_first(data)
        if self.listener is not None:
            self.listener.on_body(data)
        if self._bodiless or not data:
            data = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)  # as `chunk` does, without a call for each read of a stream
        writer = self._connection.writer
        return writer.write(data) and not writer.blocked

    def _write_first(self, data: bytes) -> bool:
        """Write after the head that is held; drop what has no reader."""
        if self.reader_gone or self.phase is _ABORTED:
            return False
        if self.phase is not _BEGUN:
            raise ResponseOrderError("a write outside a streamed reply")
        self.phase = _SENT
        if self.listener is not None:
            self.listener.on_body(data)
        held, self._held = self._held, b""
        if data and not self._bodiless:
            held += chunk(data) if self._chunked else data
        writer = self._connection.writer
        return writer.write(held) and not writer.blocked

    @property
    def is_blocked(self) -> bool:
        """Whether the client reads more slowly than we write."""
        return self._connection.writer.blocked

    async def wait_writable(self) -> None:
        """Wait until the client has read enough of what was written; raises ClientDisconnected."""
        if self.reader_gone or self.phase is _ABORTED:
            raise ClientDisconnected
        await self._connection.writer.wait_writable()

    def end(self, last: bytes = b"", trailers: Sequence[Header] = ()) -> None:
        """End a streamed reply, with `last` in the same write. Trailers are sent only if it is chunked."""
        if self.reader_gone or self.phase is _ABORTED:
            return
        if self.phase is not _SENT and self.phase is not _BEGUN:
            raise ResponseOrderError("the end of a reply that was not begun")
        if self.listener is not None:
            self.listener.on_body(last)
        if self._bodiless:
            last = b""
        elif self._chunked:
            end = format_last_chunk(trailers) if trailers else LAST_CHUNK
            last = chunk(last) + end if last else end
        held, self._held = self._held, b""
        self._connection.writer.write(held + last if held else last)
        self.phase = _ENDED
        self._connection.end_reply(self)

    def abort(self) -> None:
        """Drop the connection, so that the client cannot mistake a partial reply for a complete one."""
        if not self.reader_gone and self.phase < _ENDED:
            self.phase = _ABORTED
            self._connection.drop(self)

    def on_reader_gone(self, callback: Callable[[], None] | None) -> None:
        """Call this if the client leaves, instead of cancelling the handler; at once if it has left."""
        self._on_reader_gone = callback
        if self.reader_gone and callback is not None:
            callback()

    def allow_leaving(self) -> None:
        """Let the handler be cancelled from now on if the client leaves. Raises ClientDisconnected if it has left.

        Until then, a client that leaves after the last byte of the body is only noted.
        """
        self._may_leave = True
        if self.reader_gone and self._on_reader_gone is None:
            raise ClientDisconnected

    def lose_reader(self, cancel: Callable[[], object], *, in_body: bool) -> None:
        """Note that the client has left, perhaps within the body of its request; `cancel` if that ends the handler."""
        self.reader_gone = True
        if self._on_reader_gone is not None:
            self._on_reader_gone()
        elif self._may_leave or in_body:
            cancel()


def format_response_head(status: int, fields: Sequence[Header], framing: bytes) -> bytes:
    """Return the bytes of a response head; `framing` is the lines that this module adds."""
    names: tuple[bytes, ...]
    values: tuple[bytes, ...]
    # Pairs are of one length; to have that checked takes longer than the rest.
    names, values = zip(*fields) if fields else ((), ())  # noqa: B905
    template = _make_template(status, names)
    if template is None:
        return format_response_head(status, [field for field in fields if field[0] not in _OWN], framing)
    block, lines = template % values, len(names) + 1
    if block.count(b"\n") != lines or block.count(b"\r") != lines or block.find(b"\0") >= 0:
        return format_response_head(status, [field for field in fields if _is_clean(field)], framing)
    return block + framing + b"\r\n"


@lru_cache(maxsize=256)
def _make_template(status: int, names: tuple[bytes, ...]) -> bytes | None:
    """Return a status line and the lines of these fields with `%b` for the values; None if one of them is ours."""
    if not _OWN.isdisjoint(names):
        return None
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status
    return line + b"".join([name.replace(b"%", b"%%") + b": %b\r\n" for name in names])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def format_last_chunk(trailers: Sequence[Header]) -> bytes:
    """Return the end of a chunked response with its trailers."""
    return b"0\r\n" + b"".join(b"%b: %b\r\n" % field for field in trailers if _is_clean(field)) + b"\r\n"


def _is_clean(field: Header) -> bool:
    name, value = field
    if any(forbidden in part for part in field for forbidden in (b"\r", b"\n", b"\0")):
        _log.error("reply header %r dropped: a line break or NUL in its %d bytes", name[:64], len(value))
        return False
    return True


Handler = Callable[[HttpRequest, SocketSink], Awaitable[None]]

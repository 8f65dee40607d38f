"""One request and its response: the interface between a handler and its connection."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from http import HTTPStatus
from typing import Protocol

from dragoman.net.bodies import BudgetShare, ByteBudget, IncomingBody
from dragoman.net.errors import ClientDisconnected, RequestRejected, ResponseOrderError
from dragoman.net.headers import Header, Headers
from dragoman.net.request_head import RequestHead

_log = logging.getLogger(__name__)

# Framing and the end of the connection are decided here; fields of a handler are left out.
_OWN = frozenset({b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"trailer"})
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"


class ExchangeConnection(Protocol):
    """What an exchange needs of its connection."""

    address: str  # of the peer, without its port; empty for a local socket

    @property
    def blocked(self) -> bool: ...
    def write(self, data: bytes) -> bool: ...
    def must_close(self, exchange: "Exchange") -> bool: ...
    def end_reply(self, exchange: "Exchange") -> None: ...
    def drop(self, exchange: "Exchange") -> None: ...
    def take_over(self, head: bytes, receive: Callable[[bytes], None]) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    async def wait_writable(self) -> None: ...
    async def wait_for_body(self, exchange: "Exchange", *, whole: bool) -> None: ...
    def mark_authenticated(self) -> None: ...


class ResponseListener(Protocol):
    """Receives a copy of the response: its head, then the bytes of its body without framing."""

    def on_head(self, status: int, headers: Sequence[Header]) -> None: ...
    def on_body(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...


class _BothListeners:
    """Passes what it receives on to two listeners."""

    def __init__(self, first: ResponseListener, second: ResponseListener) -> None:
        self._both = (first, second)

    def on_head(self, status: int, headers: Sequence[Header]) -> None:
        for listener in self._both:
            listener.on_head(status, headers)

    def on_body(self, data: bytes) -> None:
        for listener in self._both:
            listener.on_body(data)

    def on_end(self) -> None:
        for listener in self._both:
            listener.on_end()


class ResponseState(Enum):
    OPEN = "nothing decided"
    STREAM = "a streamed reply under way"
    ENDED = "complete, or given up"


class Exchange:
    """A request and its response. The handler owns it until the response has ended.

    A client that closes its connection, or only its sending half (no client known to us half-closes and still reads),
    has given up: the handler's task is cancelled. From the last byte of the body on, that waits for `allow_leaving`:
    only the handler knows whether the request is one that is answered without its client, too.
    """

    __slots__ = (
        "_bodiless",
        "_body",
        "_chunked",
        "_held",
        "_may_leave",
        "_wire",
        "body_open",
        "buffered",
        "echoed_id",
        "expects_continue",
        "gone",
        "headers",
        "incoming",
        "keep_alive",
        "key_digests",
        "listener",
        "method",
        "modern",
        "on_gone",
        "path",
        "query",
        "raw_path",
        "refusal",
        "reply",
        "started",
        "task",
    )

    def __init__(self, head: RequestHead, wire: ExchangeConnection, budget: ByteBudget) -> None:
        self.method = head.method
        self.path = head.path
        self.raw_path = head.raw_path
        self.query = head.query
        self.headers = Headers(head.fields, head.lasting, head.by_name)
        self.started = False  # the head of the response was sent: no other response is possible
        self.gone = False  # the client has disconnected
        self.on_gone: Callable[[], None] | None = None  # called then, instead of cancelling the handler
        self._may_leave = False  # the handler is cancelled then, even if the body is complete
        self.modern = head.modern
        self.keep_alive = head.keep_alive
        self.expects_continue = head.expects_continue
        self.key_digests = head.key_digests  # filled by who checks the keys
        self.incoming: IncomingBody | None = None
        self.body_open = False  # more bytes of the request body are expected
        self.refusal: RequestRejected | None = None
        self.listener: ResponseListener | None = None
        self.echoed_id = b""  # the client's own id of its request, which it gets back; empty: it sent none
        self.task: asyncio.Task[None] | None = None  # of the handler
        self.buffered = BudgetShare(budget)  # bodies of the request and of its response
        self.reply = ResponseState.OPEN
        self._wire = wire
        self._body = b""
        self._held = b""
        self._chunked = False
        self._bodiless = False

    async def body(self) -> bytes:
        """Return the whole body; raises BodyTooLarge, BodyTimeout, BodyMalformed or ClientDisconnected."""
        if self.body_open and self.refusal is None:
            await self._wire.wait_for_body(self, whole=True)
        if self.refusal is not None:
            raise self.refusal.copy()
        if self.body_open:
            raise ClientDisconnected
        return self._body

    async def next_piece(self) -> bytes:
        """Return the next bytes of the body as soon as there are any, b"" at its end; raises as `body` does.

        Between two calls, the client is held back.
        """
        while True:
            if self.refusal is not None:
                raise self.refusal.copy()
            if self.incoming is not None:
                piece = self.incoming.take()
            else:
                piece, self._body = self._body, b""
            if piece or not self.body_open:
                return piece
            if self.gone:
                raise ClientDisconnected
            await self._wire.wait_for_body(self, whole=False)

    @property
    def address(self) -> str:
        """Return the address of the peer: that of the proxy if there is one in front of the gateway."""
        return self._wire.address

    def mark_authenticated(self) -> None:
        """Note that a request of this connection had a valid key: if connections run out, others are closed first."""
        self._wire.mark_authenticated()

    def allow_leaving(self) -> None:
        """Let the handler be cancelled from now on if the client leaves. Raises ClientDisconnected if it has left.

        Until then, a client that leaves after the last byte of the body is only noted.
        """
        self._may_leave = True
        if self.gone and self.on_gone is None:
            raise ClientDisconnected

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Call this if the client leaves, instead of cancelling the handler; at once if it has left."""
        self.on_gone = callback
        if self.gone:
            callback()

    def lose_client(self, cancel: Callable[[], object]) -> None:
        """Note that the client has left; call `cancel` if that ends the handler."""
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()
        elif self._may_leave or self.body_open:
            cancel()

    def listen(self, listener: ResponseListener) -> None:
        """Pass a copy of the response to this listener too."""
        self.listener = listener if self.listener is None else _BothListeners(self.listener, listener)

    def take_short_body(self, content: bytes) -> None:
        """Take a body that came whole with its head, as most do; it is too short to count in the budget."""
        self.buffered.held = len(content)
        self._body = content

    def set_body(self, content: bytes) -> None:
        self._body = content
        self.incoming = None
        self.body_open = False

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send a whole response in one write; it replaces a head that `start` made and that was not sent yet."""
        if self.gone:
            return
        if self.started:
            raise ResponseOrderError("a reply was already sent")
        if self.echoed_id:
            headers = _echo_id(headers, self.echoed_id)
        framing = b"" if status == 204 or status == 304 else b"content-length: %d\r\n" % len(body)
        if self._wire.must_close(self):
            self.keep_alive = False
            framing += _CLOSE
        head = format_response_head(status, headers, framing)
        if self.listener is not None:
            self.listener.on_head(status, headers)
            self.listener.on_body(body)
        self._held = b""
        self._put(head if self.method == "HEAD" or status == 204 or status == 304 else head + body)
        self._end()

    def start(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a streamed response: chunked, or up to the end of the connection for HTTP/1.0."""
        if self.gone:
            return
        if self.reply is not ResponseState.OPEN:
            raise ResponseOrderError("a reply was already begun")
        if self.echoed_id:
            headers = _echo_id(headers, self.echoed_id)
        self._bodiless = self.method == "HEAD" or status == 204 or status == 304
        self._chunked = self.modern and status != 204 and status != 304
        framing = _CHUNKED if self._chunked else b""
        if self._wire.must_close(self):
            self.keep_alive = False
            framing += _CLOSE
        self._held = format_response_head(status, headers, framing)
        if self.listener is not None:
            self.listener.on_head(status, headers)
        self.reply = ResponseState.STREAM

    def upgrade(self, headers: Sequence[Header], receive: Callable[[bytes], None]) -> None:
        """Change to another protocol (HTTP 101): what arrives is passed to `receive`, and `write` sends bytes as is."""
        self.reply, self.started, self.keep_alive = ResponseState.STREAM, True, False
        self.body_open = True  # whatever the client still sends when we end must not reset the connection
        if self.echoed_id:
            headers = _echo_id(headers, self.echoed_id)
        self._wire.take_over(format_response_head(101, headers, b"connection: Upgrade\r\n"), receive)

    def pause_reading(self) -> None:
        """Leave what the client sends in its socket."""
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        self._wire.resume_reading()

    async def send(self, data: bytes) -> None:
        """Write, and wait while the client reads too slowly. Empty data sends only a head that is still held."""
        if not self.write(data):
            await self.wait_writable()

    def write(self, data: bytes) -> bool:
        """Write without waiting. After False, call `wait_writable` before the next write."""
        if self.gone:
            return False
        if self.reply is not ResponseState.STREAM:
            raise ResponseOrderError("a write outside a streamed reply")
        if self.listener is not None:
            self.listener.on_body(data)
        if self._bodiless or not data:
            data = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)  # as `chunk` does, without a call for each read of a stream
        if self._held:
            return self._put(data) and not self._wire.blocked
        self.started = True
        return self._wire.write(data) and not self._wire.blocked

    @property
    def is_blocked(self) -> bool:
        """Whether the client reads more slowly than we write."""
        return self._wire.blocked

    async def wait_writable(self) -> None:
        """Wait until the client has read enough of what was written; raises ClientDisconnected."""
        if self.gone:
            raise ClientDisconnected
        await self._wire.wait_writable()

    def finish(self, last: bytes = b"", trailers: Sequence[Header] = ()) -> None:
        """End a streamed response, with `last` in the same write. Trailers are sent only if it is chunked."""
        if self.gone:
            return
        if self.reply is not ResponseState.STREAM:
            raise ResponseOrderError("finish outside a streamed reply")
        if self.listener is not None:
            self.listener.on_body(last)
        if self._bodiless:
            last = b""
        elif self._chunked:
            end = format_last_chunk(trailers) if trailers else LAST_CHUNK
            last = chunk(last) + end if last else end
        self._put(last)
        self._end()

    def abort(self) -> None:
        """Drop the connection, so that the client cannot mistake a partial response for a complete one."""
        if not self.gone and self.reply is not ResponseState.ENDED:
            self.reply = ResponseState.ENDED
            self.gone = True
            self._wire.drop(self)

    def _put(self, data: bytes) -> bool:
        """Write, after a head that is still held; return False if the connection is closing."""
        if self._held:
            data = self._held + data
            self._held = b""
        self.started = True
        return self._wire.write(data)

    def _end(self) -> None:
        self.reply = ResponseState.ENDED
        self._wire.end_reply(self)


def format_response_head(status: int, fields: Sequence[Header], framing: bytes) -> bytes:
    """Return the bytes of a response head; `framing` is the lines that this module adds."""
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status]
    lines += [b"%b: %b\r\n" % field for field in fields if field[0] not in _OWN]
    block = b"".join(lines)
    if block.count(b"\n") != len(lines) or block.count(b"\r") != len(lines) or block.find(b"\0") >= 0:
        return format_response_head(status, [field for field in fields if _is_clean(field)], framing)
    return block + framing + b"\r\n"


def _echo_id(headers: Sequence[Header], id: bytes) -> list[Header]:
    return [(name, id if name == b"x-request-id" else value) for name, value in headers]


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


Handler = Callable[[Exchange], Awaitable[None]]

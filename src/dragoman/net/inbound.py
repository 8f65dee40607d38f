"""Read requests from one client connection and pass them to the handler, one at a time and in order."""

import asyncio
import math
import socket
import struct
from enum import Enum
from functools import partial
from typing import cast

from msgspec import Struct

from dragoman.net.bodies import UNCOUNTED_BYTES, ChunkedBody
from dragoman.net.client_writer import ClientWriter
from dragoman.net.errors import BodyTimeout, ClientDisconnected, HeadRejected, RequestRejected
from dragoman.net.http_request import HttpRequest
from dragoman.net.limits import BodyWait, Deadline
from dragoman.net.request_head import HEAD_END, HeadReader, UnreadBytes, path_of
from dragoman.net.service import ConnectionService, ReceiveBytes, UpgradedConnection
from dragoman.net.sink import SinkPhase
from dragoman.net.socket_sink import CONTINUE, SocketSink, format_response_head
from dragoman.net.turns import SharedTurns

_UNREAD_HIGH = 64 * 1024  # of pipelined requests, or of a body that the handler does not read yet
_BODY_AT_ONCE = 512 * 1024  # of a body, before other connections get their turn: a fast sender's would take long
TOO_MANY_CONNECTIONS = "Too many connections to this gateway. Try again in a second."
_HEAD_TIMEOUT = "The request head took too long. Send the request again."
_RETIRE_S = 0.5  # time for a request that the client sent before it learns that we close
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_turns = SharedTurns()  # of chunked bodies: a read of tiny chunks takes 200 ms


class ReadPhase(Enum):
    """What the next bytes of a client are."""

    IDLE = "the first of a head, on a connection that is kept for it"
    HEAD = "the rest of a head, or the first head of a connection"
    REQUEST = "the body of the request that is being handled, or what follows it"
    CLOSING = "nothing that is read: no request follows the one that is being handled, if any"


_IDLE, _HEAD, _REQUEST, _CLOSING = ReadPhase  # looked up once: on Python 3.11, each look-up of a member is slow


class Exchange(Struct, frozen=True):
    """The request that is being handled, and the sink of its reply."""

    request: HttpRequest
    sink: SocketSink


class ClientConnection(asyncio.Protocol):
    """The server's side of a connection. It reads while a handler runs, to notice that the client disconnects."""

    __slots__ = (
        *("_body_in_turn", "_body_wait", "_deadline", "_exchange", "_heads", "_limits", "_loop", "_phase", "_reading"),
        *("_service", "_transport", "_unread", "_unwritten", "address", "authenticated", "writer"),
    )

    _transport: asyncio.Transport
    writer: ClientWriter

    def __init__(self, service: ConnectionService) -> None:
        self._service = service
        self._limits = service.limits
        self._loop = asyncio.get_running_loop()
        self._deadline = Deadline(self._loop)  # of the phase, or of a client that does not read
        self._phase = _HEAD
        self._exchange: Exchange | None = None  # None between two requests
        self._heads = HeadReader()
        self._unread = UnreadBytes()
        self._reading = True
        self._body_wait: BodyWait | None = None  # of the current request, once its handler reads the body
        self._body_in_turn = 0
        self._unwritten = 0
        self.address = ""
        self.authenticated = False  # a request of this connection carried a valid key

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self.writer = ClientWriter(transport, self._service.outbox)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        if not self._service.admit(self, self.address, -1 if sock is None else sock.fileno()):
            self._refuse(b"", RequestRejected(TOO_MANY_CONNECTIONS, 503))
            return
        self._deadline.set(self._limits.header_timeout_s, self._expire_head)

    def data_received(self, data: bytes) -> None:
        if self._phase is _CLOSING:
            return
        exchange = self._exchange
        if exchange is not None and exchange.request.body_open:
            if isinstance(exchange.request.incoming, ChunkedBody):
                self._unread += data
                _turns.of_this_loop().read(self)
                return
            taken = self._feed_body(exchange.request, data)
            if taken < len(data):
                self._hold(data[taken:])
        elif exchange is not None or self.writer.blocked:
            self._hold(data)
        else:
            self._read_head(data)

    def eof_received(self) -> bool:
        if self._exchange is not None:
            self._lose_client()
            self.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.close()
        self._phase = _CLOSING
        self._unread.clear()
        self._lose_client()
        self.writer.unblock()
        if self._body_wait is not None:
            self._body_wait.wake()
            self._body_wait = None  # it refers back to this
        self._service.connection_lost(self)

    def pause_writing(self) -> None:
        self.writer.blocked = True
        self._watch_writing()

    def resume_writing(self) -> None:
        self._deadline.clear()
        self.writer.unblock()
        if self._exchange is not None:
            return
        if self._phase is _CLOSING:
            self._watch_writing()  # this was the deadline of a connection that is being closed, too
        else:
            self._await_next()

    # Requests

    def _read_head(self, data: bytes) -> None:
        if not self._unread and data[0] > 32:
            end = data.find(HEAD_END) + 4
            if 4 < end <= self._limits.max_header_bytes:
                self._begin(data[:end], data[end:])
                return
        self._unread += data
        self._next_head()

    def _next_head(self) -> None:
        try:
            raw = self._unread.take_head(self._limits.max_header_bytes)
        except HeadRejected as refusal:
            self._refuse(bytes(self._unread), refusal)
            return
        if raw is not None:
            self._begin(raw, b"")
        elif self._phase is not _HEAD:
            self._phase = _HEAD
            self._deadline.set(self._limits.header_timeout_s, self._expire_head)

    def _begin(self, raw: bytes, rest: bytes) -> None:
        try:
            head = self._heads.parse(raw, self._limits.max_header_fields)
        except HeadRejected as refusal:
            self._refuse(raw, refusal)
            return
        self._phase = _CLOSING if head.tunnel else _REQUEST
        self._deadline.clear()
        self._limits = self._service.limits
        self._body_wait = None
        request = HttpRequest(head, self, self._service.budget)
        sink = SocketSink(self, head.modern, head.keep_alive, head.method == "HEAD")
        self._exchange = Exchange(request, sink)
        if rest and len(rest) == head.length <= UNCOUNTED_BYTES and head.length <= self._limits.max_body_bytes:
            request.take_short_body(rest)
        else:
            request.expect_body(head, self._limits.max_body_bytes)
            if rest:
                self.data_received(rest)
            elif self._unread and request.body_open:
                unread, self._unread = bytes(self._unread), UnreadBytes()
                self.data_received(unread)
        self._service.begin(request, sink)

    def read_until(self, ends: float) -> bool:
        """Read what has arrived of a chunked body; return whether its turn is over before that."""
        exchange = self._exchange
        if exchange is None or not exchange.request.body_open or not self._unread:
            return False
        self.resume_reading()  # it waited for this turn
        del self._unread[: self._feed_body(exchange.request, self._unread, ends)]
        if len(self._unread) > _UNREAD_HIGH or (self._unread and exchange.request.body_open):
            self.pause_reading()
        return bool(self._unread) and exchange.request.body_open

    def _feed_body(self, request: HttpRequest, data: bytes | bytearray, ends: float = math.inf) -> int:
        """Take the body's part of `data`, all of it if the body is rejected, and return its length."""
        incoming, waiting = request.incoming, self._body_wait
        if incoming is None:
            return len(data)
        try:
            taken = incoming.feed(data, ends)
        except RequestRejected as refusal:
            self._refuse_body(request, refusal)
            return len(data)
        if incoming.done:
            request.set_body(incoming.peek())
            self._deadline.clear()
            if waiting is not None:
                waiting.wake()
        elif waiting is not None and waiting.is_waiting:
            waiting.record_arrival(incoming.received_bytes)
            self._body_in_turn += taken
            if self._body_in_turn > _BODY_AT_ONCE:
                self._body_in_turn = 0
                self.pause_reading()
                self._loop.call_soon(self.resume_reading)
        elif incoming.buffered_bytes > _UNREAD_HIGH:
            self.pause_reading()
        return taken

    def _refuse_body(self, request: HttpRequest, refusal: RequestRejected) -> None:
        request.refuse_body(refusal)
        self._deadline.clear()
        if self._body_wait is not None:
            self._body_wait.wake()

    async def wait_for_body(self, request: HttpRequest, *, whole: bool) -> None:
        """Wait for more of the body, or for all of it; raises ClientDisconnected if the client has left by now."""
        if self._exchange is None:
            raise ClientDisconnected
        if request.expects_continue and self._exchange.sink.phase < SinkPhase.SENT:
            request.expects_continue = False
            self.writer.write(CONTINUE)
        self.resume_reading()
        if self._body_wait is None:
            self._body_wait = BodyWait(self._loop, self._deadline, self._limits, self._expire_body)
        await self._body_wait.wait(0 if request.incoming is None else request.incoming.received_bytes, whole=whole)

    def _hold(self, data: bytes | bytearray) -> None:
        self._unread += data
        if len(self._unread) <= _UNREAD_HIGH:
            return
        self.pause_reading()
        if self.authenticated:
            return
        # Without a key, no more than that is kept of what follows a request: it is forgotten, and the connection ends.
        self._unread.clear()
        if self._exchange is None:
            self._close()
        else:
            self._exchange.sink.keep_alive = False

    def pause_reading(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    # Replies

    def take_over(self, head: bytes, receive: ReceiveBytes) -> None:
        if self._exchange is not None:
            self._exchange.request.body_open = (
                True  # whatever the client still sends when we end must not reset the connection
            )
        self.writer.write(head)
        self._transport.set_protocol(UpgradedConnection(self, receive))
        unread, self._unread = bytes(self._unread), UnreadBytes()
        self.resume_reading()
        receive(unread)

    def must_close(self, sink: SocketSink) -> bool:
        exchange = self._exchange
        return not sink.keep_alive or exchange is None or exchange.request.body_open or self._service.is_stopping

    def end_reply(self, sink: SocketSink) -> None:
        exchange, self._exchange = self._exchange, None
        if self._transport.is_closing():
            return
        is_last = not sink.keep_alive or self._service.is_stopping
        if exchange is None or exchange.request.body_open or (is_last and not self._reading):
            self._linger()
        elif is_last:
            self._close()
        else:
            self._phase = _IDLE
            if not self.writer.blocked:
                self._await_next()

    def drop(self, sink: SocketSink) -> None:
        if self._transport.is_closing():
            return
        sock = self._transport.get_extra_info("socket")
        if not sink.modern and sock is not None:
            # Without chunks the end of the connection ends the response; only a reset marks it as incomplete.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._exchange = None
        self.writer.send_now()
        self.abort()

    def _await_next(self) -> None:
        limits = self._limits
        keep_alive_s = limits.keep_alive_s
        if not self.authenticated:
            keep_alive_s = min(keep_alive_s, limits.unauthenticated_keep_alive_s)
        self._deadline.set(keep_alive_s, self._close)
        if self._unread:
            self._next_head()
        if self._exchange is None and not self._reading:
            self.resume_reading()

    def _refuse(self, raw: bytes, refusal: RequestRejected) -> None:
        """Respond to a request that cannot be handled; later bytes of this connection are ignored."""
        self._unread.clear()
        headers, body = self._service.render_error(path_of(raw), refusal.status, refusal.message)
        framing = b"content-length: %d\r\nconnection: close\r\n" % len(body)
        head = format_response_head(refusal.status, headers, framing)
        self.writer.write(head if raw.startswith(b"HEAD ") else head + body)
        self._linger()

    # Closing

    def _linger(self) -> None:
        """Close our half and read on for a while: closing with unread bytes would reset the connection."""
        self._phase = _CLOSING
        self._unread.clear()
        self.writer.send_now()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.resume_reading()
        self._deadline.set(self._limits.linger_s, self.abort)

    def _close(self) -> None:
        """Close once everything written is sent, or once the client stops reading."""
        self._phase = _CLOSING
        self.writer.send_now()
        self._transport.close()
        self._watch_writing()

    def _lose_client(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            sink = exchange.sink
            sink.lose_reader(partial(self._service.cancel, sink), in_body=exchange.request.body_open)

    @property
    def is_idle(self) -> bool:
        return self._exchange is None

    def mark_authenticated(self, key: str) -> None:
        self.authenticated = True
        self._service.admission.keep(self, key)

    def evict(self) -> None:
        """Close an idle connection at once, with 503 to a client that has begun to send a request."""
        if self._unread and self._phase is not _CLOSING:
            self._refuse(bytes(self._unread), RequestRejected(TOO_MANY_CONNECTIONS, 503))
        self._close()

    def retire(self) -> None:
        """Close the connection soon if it is idle and no request follows."""
        if self._exchange is None and not self._unread and self._phase is not _CLOSING:
            self._deadline.set(_RETIRE_S, self._close)

    def abort(self) -> None:
        self._deadline.close()
        self._transport.abort()

    # Deadlines

    def _expire_head(self) -> None:
        if self._unread:
            self._refuse(bytes(self._unread), HeadRejected(_HEAD_TIMEOUT, 408))
        else:
            self._close()

    def _expire_body(self) -> None:
        if self._exchange is None or self._body_wait is None:
            return
        request = self._exchange.request
        if request.incoming is not None:
            self._refuse_body(request, BodyTimeout(self._body_wait.timeout_message(request.incoming.received_bytes)))

    def _watch_writing(self) -> None:
        self._unwritten = self._transport.get_write_buffer_size()
        self._deadline.set(self._limits.write_idle_timeout_s, self._expire_write)

    def _expire_write(self) -> None:
        if self._transport.get_write_buffer_size() < self._unwritten:
            self._watch_writing()
        else:
            self.abort()

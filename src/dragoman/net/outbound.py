"""One HTTP/1.1 connection to an upstream: sends requests and parses their responses, one at a time."""

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable
from contextvars import Context, copy_context
from enum import Enum, auto
from math import inf
from typing import cast

import httptools

from dragoman.net.bodies import BodySink
from dragoman.net.errors import ConnectionLost, InvalidResponse, UpstreamTimeout
from dragoman.net.headers import Header, Headers
from dragoman.net.turns import SharedTurns
from dragoman.net.write_batch import WriteBatch

HEAD_LIMIT = 64 << 10
BUFFER_LIMIT = 32 << 10
# The kernel's receive buffer of a stream. It also bounds a single read, and so what is buffered for a client that has
# stopped reading; no model writes faster. A whole response gets a larger one.
STREAM_RECEIVE_BYTES = 20 << 10
WHOLE_RECEIVE_BYTES = 1 << 20
LARGE_READ = 4 << 10  # of a stream, which is read in its turn: no model writes that much at once


class ExchangePhase(Enum):
    """The state of the exchange. In IDLE and DONE the server must not send anything."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    DONE = auto()
    BROKEN = auto()


# On Python 3.11 the attribute lookup costs as much as the rest of a comparison.
IDLE, HEAD, BODY, DONE, BROKEN = ExchangePhase

_NO_HEADERS = Headers([])
_turns = SharedTurns()  # of streams


class UpstreamConnection(asyncio.Protocol):
    """Begin an exchange, `take` body bytes and `wait` for more until DONE, then make it idle or abort it.

    There is one waiter, woken once per socket read, and not at all while `stream_to` passes body bytes to a sink. The
    timer outlives single waits: it is set again only if it fires too early or would fire too late.
    """

    __slots__ = (
        *("headers", "idle_since", "phase", "status", "used", "where"),
        *("_arrivals", "_awaits_room", "_awaits_turn", "_before_body", "_bodiless", "_context", "_deadline"),
        *("_ends_at_eof", "_failure", "_fields", "_headed", "_is_full", "_is_streamed", "_keep_alive", "_loop"),
        *("_news", "_on_lost", "_outbox", "_overhead", "_parser", "_paused", "_pieces", "_received", "_receives"),
        *("_sink", "_socket", "_taken", "_timer", "_timer_at", "_transport", "_turns", "_unread"),
        *("_unsent", "_waiter"),
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        where: str,
        outbox: WriteBatch,
        on_lost: Callable[["UpstreamConnection"], None],
    ) -> None:
        self.where = where
        self.phase = IDLE
        self.status = 0
        self.headers = _NO_HEADERS
        self.used = False
        self.idle_since = 0.0
        self._receives = 0  # size of the kernel's receive buffer
        self._is_streamed = False  # the response is a stream
        self._taken = 0  # bytes of the response that were taken while reading was paused
        self._loop = loop
        self._outbox = outbox
        self._on_lost = on_lost
        self._is_full = self._awaits_room = False  # of what the server takes at a time; the sender waits for it
        self._unsent: tuple[bytes, ...] = ()  # until the end of the event loop's turn
        self._transport: asyncio.Transport | None = None
        self._turns = _turns.of_this_loop()
        self._arrivals = select.poll()
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[bool] | None = None
        self._sink: BodySink | None = None
        self._context: Context
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._deadline = 0.0
        self._failure: ConnectionLost | None = None
        self._forget_response()

    def _forget_response(self) -> None:
        self._fields: list[Header] = []
        self._pieces: list[bytes] = []
        self._unread = b""  # body bytes of a stream that wait for a turn
        self._awaits_turn = False
        self._overhead = 0
        self._before_body = 0  # bytes of all reads up to the one in which the head ended
        self._news = False
        self._headed = False
        self._paused = False
        self._received = False
        self._bodiless = False
        self._ends_at_eof = False
        self._keep_alive = False

    # Called by the client

    def begin(self, method: str, head: bytes, body: bytes) -> None:
        """Send a request."""
        transport = self._transport
        if transport is None or self.phase is not IDLE:
            raise RuntimeError(f"no exchange can begin on a connection that is {self.phase.name}")
        if transport.is_closing():
            raise ConnectionLost(f"{self.where} closed the connection at once", sent=False, received=False)
        self._forget_response()
        self._is_streamed = False
        self._taken = 0
        if self._receives != STREAM_RECEIVE_BYTES:
            self._receive_at_once(STREAM_RECEIVE_BYTES)
        self._bodiless = method == "HEAD"  # its response has no body, whatever its head declares
        self.phase = HEAD
        self._unsent = (head, body) if body else (head,)
        self._outbox.add(self)

    def send_now(self) -> None:
        unsent, self._unsent = self._unsent, ()
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(unsent)

    async def send_more(self, data: bytes, timeout_s: float) -> bool:
        """Send more of the body and wait until the server takes more; False if it answers or breaks off already."""
        self.send_now()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
        self._awaits_room = True
        while self._is_full and self.phase is HEAD:
            await self.wait(timeout_s)
        self._awaits_room = False
        self._keep_alive &= self.phase is HEAD  # else the rest of the body will not be sent
        return self.phase is HEAD

    def wait(self, timeout_s: float) -> asyncio.Future[bool]:
        """Return a future that is done when something has arrived, or fails with UpstreamTimeout."""
        self._waiter = waiter = self._loop.create_future()
        self._sink = None  # of a cancelled `stream_to`
        self._deadline = deadline = self._loop.time() + timeout_s
        if deadline < self._timer_at:
            self._set_timer(deadline)
        return waiter

    def stream_to(self, sink: BodySink, timeout_s: float) -> asyncio.Future[bool]:
        """Like `wait`, but pass body bytes from the socket directly to the sink, without waking a task for them.

        The future also ends when the sink wants no more, which makes it true, or fails.
        """
        waiter = self.wait(timeout_s)
        self._is_streamed = True
        # The sink runs in the caller's context, so that its log lines name the caller's request.
        self._context = copy_context()
        self._sink = sink
        return waiter

    @property
    def buffered(self) -> int:
        """The number of body bytes that have arrived and were not taken."""
        return sum(map(len, self._pieces))

    def take(self) -> bytes:
        """Return the body bytes that have arrived, b"" if none; raises ConnectionLost after those of a broken one."""
        pieces = self._pieces
        if not pieces:
            if self._failure is not None:
                raise self._failure.copy()
            return b""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self._paused:
            self._paused = False
            self._taken += len(data)
            if self._taken > WHOLE_RECEIVE_BYTES != self._receives and not self._is_streamed:
                self._receive_at_once(WHOLE_RECEIVE_BYTES)
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
        return data

    def check_head(self) -> None:
        """Raise the error that broke the exchange before its head was complete; `take` raises later ones."""
        if self._failure is not None and not self._headed:
            raise self._failure.copy()

    def is_quiet(self) -> bool:
        """Return whether an idle connection is still open and has received nothing, also not since the last poll."""
        if self._transport is None or self._transport.is_closing():
            return False
        return not self._arrivals.poll(0)

    def end_exchange(self) -> bool:
        """End a DONE exchange; return True if the connection can serve another."""
        transport = self._transport
        if (
            self.phase is not DONE
            or not self._keep_alive
            or transport is None
            or transport.is_closing()
            # The server answered before it had read the whole request; it may not read the rest.
            or transport.get_write_buffer_size() > 0
        ):
            return False
        self.phase = IDLE
        self.used = True
        self._pieces.clear()
        return True

    def abort(self) -> None:
        """Drop the connection at once."""
        self._break_connection(ConnectionLost(f"{self.where}: closed by us", sent=True, received=self._received))

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket = transport.get_extra_info("socket")
        self._arrivals.register(self._socket.fileno(), select.POLLIN)
        if self._socket.family == socket.AF_UNIX:  # another worker: it has all of an upload once there is room for more
            self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes, *, is_turn: bool = False) -> None:
        """Read what has arrived; `is_turn`: of a stream, that has waited for its turn."""
        if not is_turn and (self._unread or (len(data) >= LARGE_READ and self._sink is not None)):
            self._unread += data
            self._turns.read(self)
            return
        phase, pieces = self.phase, len(self._pieces)
        if phase is HEAD:
            self._before_body += len(data)
        elif phase is not BODY:
            self._close_after_stray_bytes()
            return
        self._received = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse(error)
        if len(self._pieces) == pieces:
            self._count_overhead(len(data))
        else:
            self._overhead, self._news = 0, True
            if self._sink is not None:
                self._news = not self._drain(self._sink)
            elif self.phase is BODY and self.buffered >= BUFFER_LIMIT:
                self._pause()
        if self._news:
            self._news = False
            self._wake()

    def read_until(self, ends: float) -> bool:
        """Pass on what has arrived of a stream; return whether its turn is over before that."""
        if self._turns.clock() >= ends:
            return True
        self._read_rest()
        if self._awaits_turn:
            self._awaits_turn = False
            if not self._paused and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
        return False

    def pause_reading(self) -> None:
        """Wait for another turn."""
        self._awaits_turn = True
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _read_rest(self) -> None:
        unread, self._unread = self._unread, b""
        if unread:
            self.data_received(unread, is_turn=True)

    def eof_received(self) -> None:
        self._read_rest()
        if self.phase is BODY and self._ends_at_eof:
            self.phase = DONE
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_rest()
        self._break_connection(self._make_lost_error(exc))
        if self._timer is not None:
            self._timer.cancel()
        # The parser holds bound methods of this object: without this, only the garbage collector would free it.
        del self._parser
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._awaits_room:
            self._wake()

    # Called by the parser

    def on_message_begin(self) -> None:
        if self.phase is DONE:
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is HEAD:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.phase is not HEAD:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._fields.clear()
            return
        self.status = status
        self.headers = headers = Headers(self._fields)
        self._keep_alive = self._parser.should_keep_alive()
        self._news = True
        if self._before_body > HEAD_LIMIT and sum(len(name) + len(value) for name, value in headers) > HEAD_LIMIT:
            self._reject("the response head is too large")
            return
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            self._reject("the response uses a transfer-encoding we did not ask for")
            return
        self._headed = True
        self._ends_at_eof = coding is None and headers.get(b"content-length") is None
        self.phase = BODY
        if self._bodiless:
            # The parser waits for a body that does not come, so this connection cannot be used again.
            self.phase = DONE
            self._keep_alive = False

    def on_body(self, data: bytes) -> None:
        if self.phase is BODY:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.phase is BODY:
            self.phase = DONE
            self._news = True

    # Internal

    def _receive_at_once(self, size: int) -> None:
        self._receives = size
        with contextlib.suppress(OSError):  # the socket has just been closed
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def _drain(self, sink: BodySink) -> bool:
        """Pass body bytes to the sink; return True if there is nothing to do but wait for more."""
        waiter = self._waiter
        if waiter is None or waiter.done():  # cancelled: these bytes are kept for the next caller
            self._sink = None
            return True
        try:
            next_timeout_s = self._context.run(sink, self.take())
        except Exception as fault:  # raised by the sink: the caller gets it
            self._sink = self._waiter = None
            waiter.set_exception(fault)
            return True
        if next_timeout_s is None:
            self._wake(is_paused=True)
            return True
        self._deadline = deadline = self._loop.time() + next_timeout_s
        if deadline < self._timer_at:
            self._set_timer(deadline)
        return self.phase is BODY

    def _wake(self, is_paused: bool = False) -> None:
        waiter = self._waiter
        self._sink = None
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(is_paused)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._tick)
        self._timer_at = when

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = inf
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._loop.time() < self._deadline:
            self._set_timer(self._deadline)
            return
        self._sink = self._waiter = None  # its exception would keep the frames of the waiting task alive
        if self.phase is HEAD:
            waiter.set_exception(UpstreamTimeout("first", f"{self.where} did not begin to answer in time"))
        else:
            waiter.set_exception(UpstreamTimeout("idle", f"{self.where} sent no more data in time"))

    def _pause(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _count_overhead(self, size: int) -> None:
        """Count bytes outside the body; endless heads, interim responses, extensions and trailers are an error."""
        self._overhead += size
        if self._overhead > HEAD_LIMIT and self.phase in (HEAD, BODY):
            self._reject("the response has too many bytes outside its body")

    def _close_after_stray_bytes(self) -> None:
        self._keep_alive = False
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, error: Exception) -> None:
        if self.phase is DONE:
            self._keep_alive = False
        elif isinstance(error, httptools.HttpParserUpgrade):
            self._reject("the server switched protocols, which was not requested")
        else:
            self._reject(f"the response is not valid HTTP ({error})")

    def _break_connection(self, failure: ConnectionLost) -> None:
        if self.phase in (HEAD, BODY):
            self.phase = BROKEN
            self._failure = failure
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _make_lost_error(self, exc: Exception | None) -> ConnectionLost:
        ended = "closed the connection" if exc is None else "broke the connection"
        when = "in the middle of its answer" if self._received else "before it answered"
        return ConnectionLost(f"{self.where} {ended} {when}", sent=not self._unsent, received=self._received)

    def _reject(self, reason: str) -> None:
        self._break_connection(InvalidResponse(f"{self.where}: {reason}", sent=True, received=True))

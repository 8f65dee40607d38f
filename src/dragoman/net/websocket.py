"""The server's side of a WebSocket: wsproto reads the frames.

Frames are read in turns that all WebSockets share (net/turns.py), so that a flood of tiny ones does not delay others.
"""

import asyncio
import base64
import binascii
import hashlib
import struct
from io import StringIO

from msgspec import Struct
from wsproto.frame_protocol import CloseReason, Frame, FrameDecoder, MessageDecoder, Opcode, ParseFailed

from dragoman.net.errors import BufferBudgetExceeded
from dragoman.net.headers import Header, Headers, asks_for_websocket
from dragoman.net.http_request import HttpRequest
from dragoman.net.socket_sink import SocketSink
from dragoman.net.turns import ReadTurns, SharedTurns

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
UNSUPPORTED_DATA, POLICY_VIOLATION, TOO_BIG, TRY_AGAIN = 1003, 1008, 1009, 1013
MAX_WAITING = 256  # messages that are not taken yet; then the client is not read from
MAX_CONTROL_FRAMES = 1_000  # in a second
MAX_FRAGMENTS = 10_000  # of one message
_MAX_REASON = 123  # bytes
_PART = 256 * 1024  # letters that are held together: one string that grows to megabytes would be copied while it does
_LAST = 0x80  # the bit that marks the last frame of a message
_SENT_CODES = frozenset((*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)))  # that a client may close with
_turns = SharedTurns()


def wants_websocket(headers: Headers) -> bool:
    """Return whether a request asks for a WebSocket that we can open."""
    return asks_for_websocket(headers) and headers.get(b"sec-websocket-version") == b"13" and _has_key(headers)


def _has_key(headers: Headers) -> bool:
    try:
        return len(base64.b64decode(headers.get(b"sec-websocket-key") or b"", validate=True)) == 16
    except binascii.Error:
        return False


class SocketMessage(Struct, frozen=True):
    """A text message. Its bytes count in the budget of all requests until they are released."""

    parts: list[StringIO]
    size: int  # bytes

    def read(self) -> bytes:
        """Return the text as UTF-8; this copies it, so that large ones are read in a thread."""
        return b"".join([part.getvalue().encode() for part in self.parts])


class _Dropped:
    """Stands for a message that there was no room for."""


class _IncomingMessage:
    """What has arrived of a message."""

    __slots__ = ("fragments", "is_dropped", "parts", "size")

    def __init__(self) -> None:
        # Not a list of all pieces: a client that sends letters one by one would make us hold eight bytes for each.
        self.parts: list[StringIO] = []
        self.size = 0  # bytes
        self.fragments = 0
        self.is_dropped = False  # there is no room for it

    def write(self, text: str) -> None:
        if not self.parts or self.parts[-1].tell() >= _PART:
            self.parts.append(StringIO())
        self.parts[-1].write(text)


class WebSocket:
    """Text messages in both directions, until one side closes.

    Compression is declined: wsproto inflates without a bound, so that a few kilobytes could fill the memory.
    """

    def __init__(self, request: HttpRequest, sink: SocketSink, max_bytes: int, turns: ReadTurns | None = None) -> None:
        self._request = request
        self._sink = sink
        self._max_bytes = max_bytes
        self._turns = turns or _turns.of_this_loop()
        self._clock = self._turns.clock
        # Not wsproto's Connection, which is a reference cycle and ends without a close frame after a protocol error.
        self._frames = FrameDecoder(client=False)
        self._fragments = MessageDecoder()
        self._incoming = _IncomingMessage()
        self._inbox: asyncio.Queue[SocketMessage | _Dropped | None] = asyncio.Queue()
        self._is_full = False  # as many messages wait as may
        self._is_closed = False
        self._second = float("-inf")  # when the second began whose control frames are counted
        self._control_frames = 0
        self.received_at = self._clock()  # of the last bytes from the client

    def accept(self, *fields: Header) -> None:
        """Answer the handshake, with these header fields."""
        key = self._request.headers.get(b"sec-websocket-key") or b""
        token = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
        head = [(b"upgrade", b"websocket"), (b"sec-websocket-accept", token), *fields]
        self._sink.upgrade(head, self._receive)

    async def receive(self) -> SocketMessage | None:
        """Return the next message, whose bytes must be released later; None once the connection is closed.

        Raises BufferBudgetExceeded in place of a message that was dropped because the gateway had no room for it.
        """
        received = await self._inbox.get()
        if self._is_full and self._inbox.qsize() <= MAX_WAITING // 2:
            self._is_full = False
            self._turns.read(self)
        if isinstance(received, _Dropped):
            raise BufferBudgetExceeded("the gateway holds as many bytes as it may (server.max_buffered_mb)")
        return received

    def hold(self, size: int) -> None:
        """Count bytes that are held for this connection; raises BufferBudgetExceeded, and counts none."""
        self._request.buffered.hold(size)

    def release(self, size: int) -> None:
        """Stop counting bytes that are no longer held."""
        share = self._request.buffered
        share.release_to(max(0, share.held - size))

    @property
    def is_open(self) -> bool:
        return not self._is_closed and not self._sink.reader_gone

    @property
    def blocked(self) -> bool:
        """Whether the client reads more slowly than we write."""
        return self._sink.is_blocked

    async def wait_writable(self) -> None:
        await self._sink.wait_writable()

    def send(self, text: bytes) -> None:
        if self.is_open:
            if not text.isascii():  # an upstream's bytes may be no UTF-8, and the client would end the connection
                text = text.decode(errors="replace").encode()
            self._sink.write(format_frame(Opcode.TEXT, text))

    def ping(self) -> None:
        if self.is_open:
            self._sink.write(format_frame(Opcode.PING, b""))

    def close(self, code: int, reason: str = "") -> None:
        """Close the connection; messages that wait are forgotten."""
        self._end(struct.pack("!H", code) + reason.encode("ascii", "replace")[:_MAX_REASON])

    def _end(self, payload: bytes) -> None:
        """Send a close frame and end the reply at once: the client may be gone before its handler runs again."""
        if self._is_closed:
            return
        self._is_closed, self._is_full = True, False
        incoming, self._incoming = self._incoming, _IncomingMessage()
        if not incoming.is_dropped:
            self.release(incoming.size)
        while not self._inbox.empty():
            waiting = self._inbox.get_nowait()
            if isinstance(waiting, SocketMessage):
                self.release(waiting.size)
        self._inbox.put_nowait(None)
        self._sink.end(format_frame(Opcode.CLOSE, payload))

    def _receive(self, data: bytes) -> None:
        self.received_at = self._clock()
        if data and not self._is_closed:
            self._frames.receive_bytes(data)
            self._turns.read(self)

    def read_until(self, ends: float) -> bool:
        """Read frames until the clock says `ends`; return whether that was too short for those that have arrived."""
        try:
            while not self._is_closed:
                if self._inbox.qsize() >= MAX_WAITING:
                    # Read no more until messages are taken; end the connection if the client itself does not read.
                    if self.blocked:
                        self._sink.abort()
                        self.close(TRY_AGAIN)
                    else:
                        self._is_full = True
                        self._sink.pause_reading()
                    return False
                frame = self._frames.process_buffer()
                if frame is None:
                    self._sink.resume_reading()
                    return False
                self._take(frame)
                if self._clock() >= ends:
                    return True
        except ParseFailed as error:
            self.close(error.code, str(error))
        return False

    def pause_reading(self) -> None:
        self._sink.pause_reading()

    def _take(self, frame: Frame) -> None:
        if not frame.opcode.iscontrol():
            self._take_piece(self._fragments.process_frame(frame))
            return
        assert isinstance(frame.payload, bytes)
        if frame.opcode is Opcode.CLOSE:
            code = _read_close_code(frame.payload)
            self._request.body_open = False  # nothing follows
            self._end(code)
            return
        now = self._clock()
        if now - self._second >= 1.0:
            self._second, self._control_frames = now, 0
        self._control_frames += 1
        if self._control_frames > MAX_CONTROL_FRAMES:
            self.close(POLICY_VIOLATION, f"more than {MAX_CONTROL_FRAMES} control frames in a second")
        if frame.opcode is Opcode.PING and self.is_open and not self.blocked:  # one that does not read gets no answers
            self._sink.write(format_frame(Opcode.PONG, frame.payload))

    def _take_piece(self, frame: Frame) -> None:
        """Take a fragment of a message, or what has arrived of one."""
        text, incoming = frame.payload, self._incoming
        if not isinstance(text, str):
            self.close(UNSUPPORTED_DATA, "messages are JSON text")
            return
        size = len(text) if text.isascii() else len(text.encode())
        incoming.fragments += frame.frame_finished
        if incoming.size + size > self._max_bytes:
            self.close(TOO_BIG, "the message is too large (server.max_body_mb)")
        elif incoming.fragments > MAX_FRAGMENTS:
            self.close(POLICY_VIOLATION, f"a message has more than {MAX_FRAGMENTS} fragments")
        else:
            self._add(incoming, text, size)
            if frame.message_finished:
                self._incoming = _IncomingMessage()
                self._inbox.put_nowait(
                    _Dropped() if incoming.is_dropped else SocketMessage(incoming.parts, incoming.size)
                )

    def _add(self, incoming: _IncomingMessage, text: str, size: int) -> None:
        if not incoming.is_dropped:
            try:
                self.hold(size)
            except BufferBudgetExceeded:
                self.release(incoming.size)
                incoming.is_dropped, incoming.parts = True, []
            else:
                incoming.write(text)
        incoming.size += size


def format_frame(opcode: Opcode, payload: bytes) -> bytes:
    """Return a whole message, or a control frame, as one frame of a server."""
    length = len(payload)
    if length < 126:
        return struct.pack("!BB", _LAST | opcode, length) + payload
    if length < 1 << 16:
        return struct.pack("!BBH", _LAST | opcode, 126, length) + payload
    return struct.pack("!BBQ", _LAST | opcode, 127, length) + payload


def _read_close_code(payload: bytes) -> bytes:
    """Return the code of a client's close frame, as it is sent back; raises ParseFailed."""
    code, reason = payload[:2], payload[2:]
    if payload and (len(code) < 2 or int.from_bytes(code, "big") not in _SENT_CODES):
        raise ParseFailed("the close frame has no valid code")
    try:
        reason.decode()
    except UnicodeDecodeError:
        text = "the reason of the close frame is not UTF-8"
        raise ParseFailed(text, CloseReason.INVALID_FRAME_PAYLOAD_DATA) from None
    return code

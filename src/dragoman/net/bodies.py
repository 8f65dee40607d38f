"""Bodies of requests and responses.

A request's body, of known length or chunked, is collected, and its bytes are counted against one budget. A response's
body is read chunk by chunk into a sink, or as a whole.
"""

import asyncio
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from enum import Enum
from io import BytesIO
from typing import Protocol

from msgspec import Struct

from dragoman.net.errors import BodyTooLarge, BufferBudgetExceeded, MalformedBody, SizeLimitExceeded, UpstreamTimeout

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_MAX_LINE = 4096
# Sizes, extensions and trailers may exceed the content by this much; one-byte chunks only waste CPU time.
_MAX_OVERHEAD = 64 * 1024
UNCOUNTED_BYTES = 64 * 1024  # of each request; small bodies are not counted

BodySink = Callable[[bytes], float | None]  # chunk -> seconds to wait for the next; None pauses the stream


class ByteBudget:
    """The number of bytes that all requests together may hold, and that they hold now."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class BudgetShare(Struct, eq=False):
    """The bytes of the budget that one request holds."""

    budget: ByteBudget
    held: int = 0

    def hold(self, size: int) -> None:
        """Count `size` more bytes; raises BufferBudgetExceeded, and counts none, if they exceed the budget."""
        held = self.held + size
        if held > UNCOUNTED_BYTES:
            budget = self.budget
            more = held - max(self.held, UNCOUNTED_BYTES)
            if budget.held + more > budget.limit:
                raise BufferBudgetExceeded(f"the gateway holds as many bytes as it may, {budget.limit}")
            budget.held += more
        self.held = held

    def release_to(self, held: int) -> None:
        """Reduce the bytes that are counted to `held`."""
        if self.held > UNCOUNTED_BYTES:
            self.budget.held -= self.held - max(held, UNCOUNTED_BYTES)
        self.held = held


class _CollectedBody:
    """What has arrived of a body, and how much of it was taken."""

    __slots__ = ("_charge", "_data", "_taken", "done")

    def __init__(self, charge: BudgetShare) -> None:
        self._charge = charge
        self._data = BytesIO()
        self._taken = 0
        self.done = False

    @property
    def buffered_bytes(self) -> int:
        """Return the number of bytes that were not taken yet."""
        return self._data.tell()

    @property
    def received_bytes(self) -> int:
        return self._taken + self._data.tell()

    def take(self) -> bytes:
        """Return what has arrived since the last call; it stays counted."""
        data, self._data = self._data.getvalue(), BytesIO()
        self._taken += len(data)
        return data

    def peek(self) -> bytes:
        """Return all that was not taken."""
        return self._data.getvalue()  # no copy, however large


class SizedBody(_CollectedBody):
    """A body of known length."""

    __slots__ = ("_missing",)

    def __init__(self, length: int, max_bytes: int, charge: BudgetShare) -> None:
        if length > max_bytes:
            raise BodyTooLarge(f"the body is larger than {max_bytes} bytes")
        super().__init__(charge)
        self._missing = length

    def feed(self, data: bytes | bytearray, ends: float = math.inf) -> int:
        """Take the body's part of `data`, which is one copy, and return its length; raises BufferBudgetExceeded."""
        taken = min(len(data), self._missing)
        self._charge.hold(taken)
        self._data.write(data if taken == len(data) else data[:taken])
        self._missing -= taken
        self.done = self._missing == 0
        return taken


class _Expect(Enum):
    SIZE = "size"
    CONTENT = "content"
    CONTENT_END = "content end"
    TRAILER = "trailer"


class ChunkedBody(_CollectedBody):
    """A body in chunks; extensions and trailers are checked, bounded and dropped."""

    __slots__ = ("_expect", "_line", "_max_bytes", "_missing", "_overhead")

    def __init__(self, max_bytes: int, charge: BudgetShare) -> None:
        super().__init__(charge)
        self._max_bytes = max_bytes
        self._line = bytearray()
        self._expect = _Expect.SIZE
        self._missing = 0
        self._overhead = 0

    def feed(self, data: bytes | bytearray, ends: float = math.inf) -> int:
        """Take the body's part of `data`, less of it if the clock says `ends` before, and return how much was taken.

        Raises BufferBudgetExceeded.
        """
        at = 0
        while at < len(data) and not self.done:
            take = self._take_content if self._expect is _Expect.CONTENT else self._take_line
            at = take(data, at)
            if time.monotonic() >= ends:
                break
        return at

    def _take_content(self, data: bytes | bytearray, at: int) -> int:
        end = min(len(data), at + self._missing)
        self._charge.hold(end - at)
        self._data.write(data[at:end])
        self._missing -= end - at
        if not self._missing:
            self._expect = _Expect.CONTENT_END
        return end

    def _take_line(self, data: bytes | bytearray, at: int) -> int:
        newline = data.find(b"\n", at)
        end = len(data) if newline < 0 else newline + 1
        if end - at + len(self._line) > _MAX_LINE:
            raise MalformedBody("a line of the chunked coding is too long")
        self._line += data[at:end]
        self._overhead += end - at
        if self._overhead > _MAX_OVERHEAD + self.received_bytes:
            raise MalformedBody("the chunked coding outweighs its content")
        if newline >= 0:
            line = bytes(self._line)
            self._line.clear()
            self._read_line(line)
        return end

    def _read_line(self, line: bytes) -> None:
        match self._expect:
            case _Expect.SIZE:
                match = _SIZE_LINE.fullmatch(line)
                if match is None:
                    raise MalformedBody("malformed chunk size")
                self._missing = int(match[1], 16)
                if self.received_bytes + self._missing > self._max_bytes:
                    raise BodyTooLarge(f"the body is larger than {self._max_bytes} bytes")
                self._expect = _Expect.CONTENT if self._missing else _Expect.TRAILER
            case _Expect.CONTENT_END:
                if line != b"\r\n":
                    raise MalformedBody("a chunk is longer than its size")
                self._expect = _Expect.SIZE
            case _Expect.TRAILER:
                if line == b"\r\n":
                    self.done = True
                elif not _TRAILER_LINE.fullmatch(line):
                    raise MalformedBody("malformed trailer")
            case _Expect.CONTENT:
                raise AssertionError("content is not read by lines")


IncomingBody = SizedBody | ChunkedBody


class ChunkSource(Protocol):
    async def chunk(self, timeout_s: float) -> bytes: ...
    def close(self) -> None: ...


async def stream_chunks(chunk: Callable[[float], Awaitable[bytes]], sink: BodySink, timeout_s: float) -> bool:
    """Pass chunks to the sink. Return True at the end of the body, False if the sink paused it."""
    while piece := await chunk(timeout_s):
        next_timeout_s = sink(piece)
        if next_timeout_s is None:
            return False
        timeout_s = next_timeout_s
    return True


class ReadableBody(Protocol):
    async def read(self, limit: int, timeout_s: float) -> bytes: ...
    def close(self) -> None: ...


async def read_and_close(response: ReadableBody, limit: int, timeout_s: float) -> bytes:
    """Return the whole body of a response, and give up its connection if that fails."""
    try:
        return await response.read(limit, timeout_s)
    finally:
        response.close()


class BodyBounds(Struct, frozen=True):
    """How much of a body is read, and for how long; without `total_s`, no more than `silence_s` in all."""

    max_bytes: int
    silence_s: float  # without data
    total_s: float | None = None


async def read_chunks(
    body: ChunkSource, bounds: BodyBounds, where: str, hold: Callable[[int], None] | None = None
) -> bytes:
    """Return the whole body; raises SizeLimitExceeded or UpstreamTimeout beyond its bounds.

    `hold` is called with the size of each piece, and may raise.
    """
    limit, silence_s, total_s = bounds.max_bytes, bounds.silence_s, bounds.total_s
    clock = asyncio.get_running_loop().time
    deadline = clock() + (silence_s if total_s is None else total_s)
    first, rest = b"", BytesIO()
    size = 0
    while piece := await body.chunk(max(0.001, min(silence_s, deadline - clock()))):
        size += len(piece)
        if clock() > deadline:
            body.close()
            raise UpstreamTimeout("idle", f"{where} did not end its answer in time")
        if hold is not None:
            hold(len(piece))
        if size > limit:
            body.close()
            raise SizeLimitExceeded(f"{where} answered with more than {limit} bytes")
        if size == len(piece):
            first = piece
        else:
            rest.write(piece if rest.tell() else first + piece)
    return rest.getvalue() or first


class ResponseInChunks(ABC):
    """A response that is always read chunk by chunk. `where` names it in errors."""

    __slots__ = ()
    where = "the upstream"

    @abstractmethod
    async def chunk(self, timeout_s: float) -> bytes: ...
    @abstractmethod
    def close(self) -> None: ...

    def take_whole(self) -> bytes | None:
        return None

    async def stream_to(self, sink: BodySink, timeout_s: float) -> bool:
        return await stream_chunks(self.chunk, sink, timeout_s)

    async def read(self, limit: int, timeout_s: float) -> bytes:
        return await read_chunks(self, BodyBounds(limit, timeout_s), self.where)

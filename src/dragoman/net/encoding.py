"""Decompress bodies, as a whole or in chunks, up to a size limit."""

import io
import zlib
from collections.abc import Callable
from typing import IO, Protocol, cast

import brotli
import zstandard

from dragoman.net.errors import InvalidEncoding, SizeLimitExceeded

# RFC 9659: a zstd content coding must not need a larger window.
ZSTD_WINDOW = 8 << 20
STEP = 4096
PIECE = 1 << 15
MAX_CODINGS = 3
# Every member needs a new inflate state, so a body of thousands of empty ones is an attack.
MAX_MEMBERS = 64

_GZIP_WBITS = 31
_ZLIB_WBITS = 15
_RAW_WBITS = -15


class Decoder(Protocol):
    """The decoder of one content coding of one body."""

    def feed(self, data: bytes, room: int) -> bytes:
        """Decode `data`; raises SizeLimitExceeded if the result has more than `room` bytes."""

    def finish(self) -> None:
        """Raise InvalidEncoding if the body is incomplete."""


class Gzip:
    """RFC 1952, any number of members."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WBITS)
        self._members = 1

    def feed(self, data: bytes, room: int) -> bytes:
        out = _inflate(self._member, data, room)
        while self._member.unused_data:
            rest = self._member.unused_data
            self._members += 1
            if self._members > MAX_MEMBERS:
                raise InvalidEncoding("the gzip body has too many members")
            self._member = zlib.decompressobj(_GZIP_WBITS)
            out += _inflate(self._member, rest, room - len(out))
        return out

    def finish(self) -> None:
        if not self._member.eof:
            raise InvalidEncoding("the gzip body is cut short")


class Deflate:
    """The zlib format of RFC 9110, or raw deflate, which some servers send; the first two bytes show which."""

    def __init__(self) -> None:
        self._start = b""
        self._stream: zlib._Decompress | None = None

    def feed(self, data: bytes, room: int) -> bytes:
        if self._stream is None:
            data = self._start + data
            if len(data) < 2:
                self._start = data
                return b""
            wrapped = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._stream = zlib.decompressobj(_ZLIB_WBITS if wrapped else _RAW_WBITS)
        out = _inflate(self._stream, data, room)
        if self._stream.unused_data:
            raise InvalidEncoding("the deflate body goes on after its end")
        return out

    def finish(self) -> None:
        if self._stream is None or not self._stream.eof:
            raise InvalidEncoding("the deflate body is cut short")


class Brotli:
    """RFC 7932."""

    def __init__(self) -> None:
        self._stream = brotli.Decompressor()

    def feed(self, data: bytes, room: int) -> bytes:
        pieces = []
        try:
            while data or not self._stream.can_accept_more_data():
                piece: bytes = self._stream.process(data, output_buffer_limit=PIECE)
                data = b""
                room -= len(piece)
                if room < 0:
                    raise SizeLimitExceeded("the br body expands beyond the limit")
                pieces.append(piece)
        except brotli.error as error:
            raise InvalidEncoding("the body is not br") from error
        return b"".join(pieces)

    def finish(self) -> None:
        if not self._stream.is_finished():
            raise InvalidEncoding("the br body is cut short")


class _Sink:
    """Receives what the zstd writer decodes, and stops it at the size limit."""

    def __init__(self) -> None:
        self.room = 0
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise SizeLimitExceeded("the zstd body expands beyond the limit")
        self.pieces.append(bytes(data))
        return len(data)


_MARK = b"the end of the last frame"
_MARK_FRAME = zstandard.ZstdCompressor().compress(_MARK)


class Zstd:
    """RFC 8878, any number of frames."""

    def __init__(self) -> None:
        self._sink = _Sink()
        stream = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        self._writer = stream.stream_writer(cast(IO[bytes], self._sink), write_size=PIECE)

    def feed(self, data: bytes, room: int) -> bytes:
        self._sink.room = room
        try:
            self._writer.write(data)
        except zstandard.ZstdError as error:
            raise InvalidEncoding("the body is not zstd, or asks for too much memory") from error
        pieces, self._sink.pieces = self._sink.pieces, []
        return b"".join(pieces)

    def finish(self) -> None:
        # The writer does not report whether a frame is open. A known frame is decoded to itself only if none is; it is
        # fed in two parts, because zstd accepts a whole frame even while it waits for the rest of a frame header.
        try:
            out = self.feed(_MARK_FRAME[:1], PIECE) + self.feed(_MARK_FRAME[1:], PIECE)
        except (InvalidEncoding, SizeLimitExceeded):
            out = b""
        if out != _MARK:
            raise InvalidEncoding("the zstd body is cut short")


CODINGS: dict[bytes, Callable[[], Decoder]] = {
    b"gzip": Gzip,
    b"x-gzip": Gzip,
    b"deflate": Deflate,
    b"br": Brotli,
    b"zstd": Zstd,
}


def make_decoders(encoding: bytes) -> tuple[Decoder, ...]:
    """Return the decoders for a content-encoding header, in the order in which to apply them."""
    names = [name.strip().lower() for name in encoding.split(b",")]
    names = [name for name in names if name and name != b"identity"]
    if len(names) > MAX_CODINGS:
        raise InvalidEncoding("too many content encodings")
    unknown = [name for name in names if name not in CODINGS]
    if unknown:
        raise InvalidEncoding(f"unknown content encoding {unknown[0][:40]!r}")
    return tuple(CODINGS[name]() for name in reversed(names))


def decompress(encoding: bytes, body: bytes, limit: int) -> bytes:
    """Return the decompressed body; raises SizeLimitExceeded if any stage has more than `limit` bytes."""
    for decoder in make_decoders(encoding):
        body = _decompress_one(decoder, body, limit)
    if len(body) > limit:
        raise SizeLimitExceeded("the body exceeds the limit")
    return body


def _decompress_one(decoder: Decoder, body: bytes, limit: int) -> bytes:
    out = io.BytesIO()
    for start in range(0, len(body), STEP):
        out.write(decoder.feed(body[start : start + STEP], limit - out.tell()))
    decoder.finish()
    return out.getvalue()


class StreamDecompressor:
    """Decompresses a body in chunks: `put` a compressed chunk, then `take` decompressed ones until it returns b""."""

    def __init__(self, chain: tuple[Decoder, ...], piece: int = 256 << 10, most: int = 8 << 20) -> None:
        self._chain = chain
        self._piece = piece
        self._most = most
        self._packed = b""
        self._at = 0
        self._begun = False

    def put(self, data: bytes) -> None:
        """Set the next compressed chunk; only after `take` has returned b""."""
        self._packed = data
        self._at = 0

    def take(self) -> bytes:
        out: list[bytes] = []
        size = 0
        while size < self._piece and self._at < len(self._packed):
            data = self._packed[self._at : self._at + STEP]
            self._at += STEP
            self._begun = True
            for decoder in self._chain:
                data = decoder.feed(data, self._most)
            size += len(data)
            out.append(data)
        return b"".join(out)

    def finish(self) -> None:
        # A response without a body may still name the encoding that a body would have had.
        if self._begun:
            for decoder in self._chain:
                decoder.finish()


def _inflate(stream: "zlib._Decompress", data: bytes, room: int) -> bytes:
    pieces = []
    full = False
    try:
        while data or full:
            piece = stream.decompress(data, PIECE)
            data = stream.unconsumed_tail
            # With all input read, a full piece may have left some of a long match inside zlib.
            full = len(piece) == PIECE
            room -= len(piece)
            if room < 0:
                raise SizeLimitExceeded("the body expands beyond the limit")
            pieces.append(piece)
    except zlib.error as error:
        raise InvalidEncoding("the body is not gzip or deflate") from error
    return b"".join(pieces)

"""Decompress bodies, as a whole or in chunks, up to a size limit."""

import io
import zlib
from collections.abc import Callable
from typing import Protocol

from dragoman.net.errors import InvalidEncoding, SizeLimitExceeded

# RFC 9659: a zstd content coding must not need a larger window.
ZSTD_WINDOW_LOG = 23  # 8 MB
STEP = 4096
PIECE = 1 << 15
MAX_CODINGS = 3
# Every member needs a new inflate state, so a body of thousands of empty ones is an attack.
MAX_MEMBERS = 64
MAX_FRAMES = 1024  # of zstd: parallel compressors write one for every few megabytes

_GZIP_WBITS = 31
_ZLIB_WBITS = 15
_RAW_WBITS = -15


class BodyDecoder(Protocol):
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
            raise InvalidEncoding("the deflate body continues after its end")
        return out

    def finish(self) -> None:
        if self._stream is None or not self._stream.eof:
            raise InvalidEncoding("the deflate body is cut short")


class Zstd:
    """RFC 8878, up to MAX_FRAMES frames."""

    def __init__(self) -> None:
        from dragoman.net import zstd

        self._zstd = zstd
        self._frame = zstd.make_frame_decoder(ZSTD_WINDOW_LOG)
        self._frames = 1
        self._begun = False  # whether the current frame has

    def feed(self, data: bytes, room: int) -> bytes:
        pieces = []
        try:
            while data or not (self._frame.needs_input or self._frame.eof):
                if self._frame.eof:
                    self._frames += 1
                    if self._frames > MAX_FRAMES:
                        raise InvalidEncoding("the zstd body has too many frames")
                    self._frame = self._zstd.make_frame_decoder(ZSTD_WINDOW_LOG)
                self._begun = True
                piece: bytes = self._frame.decompress(data, PIECE)
                data = self._frame.unused_data if self._frame.eof else b""
                room -= len(piece)
                if room < 0:
                    raise SizeLimitExceeded("the zstd body expands beyond the limit")
                pieces.append(piece)
        except self._zstd.ZstdError as error:
            raise InvalidEncoding("the body is not zstd, or asks for too much memory") from error
        return b"".join(pieces)

    def finish(self) -> None:
        if self._begun and not self._frame.eof:
            raise InvalidEncoding("the zstd body is cut short")


CODINGS: dict[bytes, Callable[[], BodyDecoder]] = {
    b"gzip": Gzip,
    b"x-gzip": Gzip,
    b"deflate": Deflate,
    b"zstd": Zstd,
}


def make_decoders(encoding: bytes) -> tuple[BodyDecoder, ...]:
    """Return the decoders for a content-encoding header, in the order in which to apply them."""
    names = [name.strip().lower() for name in encoding.split(b",")]
    names = [name for name in names if name and name != b"identity"]
    if len(names) > MAX_CODINGS:
        raise InvalidEncoding("too many content encodings")
    unknown = [name for name in names if name not in CODINGS]
    if unknown:
        raise InvalidEncoding(f"unknown content encoding {unknown[0][:40]!r}; gzip, deflate and zstd are known")
    return tuple(CODINGS[name]() for name in reversed(names))


def decompress(encoding: bytes, body: bytes, limit: int) -> bytes:
    """Return the decompressed body; raises SizeLimitExceeded if any stage has more than `limit` bytes."""
    for decoder in make_decoders(encoding):
        out = io.BytesIO()
        for start in range(0, len(body), STEP):
            out.write(decoder.feed(body[start : start + STEP], limit - out.tell()))
        decoder.finish()
        body = out.getvalue()
    if len(body) > limit:
        raise SizeLimitExceeded("the body exceeds the limit")
    return body


class StreamDecompressor:
    """Decompresses a body in chunks: `put` a compressed chunk, then `take` decompressed ones until it returns b""."""

    def __init__(self, chain: tuple[BodyDecoder, ...], piece: int = PIECE, most: int = 8 << 20) -> None:
        self._chain = chain
        self._piece = piece
        self._most = most
        self._packed = b""
        self._at = 0
        self._out = b""
        self._taken = 0
        self._begun = False

    @property
    def has_more(self) -> bool:
        """Whether `take` returns more without another chunk, at least perhaps."""
        return self._taken < len(self._out) or self._at < len(self._packed)

    def put(self, data: bytes) -> None:
        """Set the next compressed chunk; only after `take` has returned b""."""
        self._packed = data
        self._at = 0

    def take(self) -> bytes:
        """Return at most a piece: a few bytes may unpack to megabytes."""
        if self._taken >= len(self._out):
            self._out, self._taken = self._unpack(), 0
        start, self._taken = self._taken, self._taken + self._piece
        return self._out[start : self._taken]

    def _unpack(self) -> bytes:
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

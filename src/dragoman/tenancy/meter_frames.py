"""Frames between processes and the one that has the meter: numbered questions and answers, in MessagePack."""

import struct
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from dragoman.store.meter import Level, Operation, Result

MAX_FRAME = 8 * 1024 * 1024
MAX_IN_FRAME = 500  # questions
_LENGTH = struct.Struct(">I")


class Read(Struct, frozen=True, array_like=True, tag="l"):
    """A question: the levels of these counters."""

    counters: tuple[str, ...]


class Levels(Struct, frozen=True, array_like=True, tag="v"):
    """Its answer."""

    levels: tuple[Level, ...]


Question = tuple[int, Operation | Read]
AnswerFrame = tuple[int, Result | Levels]

_encoder = msgspec.msgpack.Encoder()
read_questions = msgspec.msgpack.Decoder(list[Question]).decode
read_answers = msgspec.msgpack.Decoder(list[AnswerFrame]).decode


class FrameError(Exception):
    """The other side sent something that is not a frame."""


def write_frame(content: Sequence[Question] | Sequence[AnswerFrame]) -> bytes:
    body = _encoder.encode(content)
    return _LENGTH.pack(len(body)) + body


class MeterFrameReader:
    """Cuts bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that are whole by now. Raises FrameError for one that is too long."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes")
            if len(self._buffer) - at - _LENGTH.size < length:
                break
            at += _LENGTH.size
            yield bytes(self._buffer[at : at + length])
            at += length
        del self._buffer[:at]

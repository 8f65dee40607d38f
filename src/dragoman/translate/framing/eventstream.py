"""Read AWS event streams: bytes in any chunks to whole messages with valid checksums.

A message is, big-endian: total length u32, headers' length u32, CRC-32 of these eight bytes, headers, payload, and
CRC-32 of everything before it. The first checksum is verified as soon as it has arrived: a corrupt length would
otherwise make us wait for bytes that never come. Nothing is read after the first malformed message.
"""

from binascii import crc32
from collections.abc import Mapping
from functools import lru_cache
from struct import Struct as Layout
from uuid import UUID

from msgspec import Struct

from dragoman.translate.framing.sse import Broken

CONTENT_TYPE = "application/vnd.amazon.eventstream"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_HEADERS_BYTES = 128 * 1024  # AWS's own limit
SMALLEST = 16
CUT = "ended inside a frame"

HeaderValue = bool | int | str | bytes | UUID  # a timestamp is its milliseconds since the epoch

_PRELUDE = Layout(">III")
_CRC = Layout(">I")
_PRELUDE_BYTES, _CRC_BYTES = _PRELUDE.size, _CRC.size
_read_prelude, _read_crc = _PRELUDE.unpack_from, _CRC.unpack_from  # looked up once, not for each message
_LENGTH = Layout(">H")
_INTEGERS = {2: Layout(">b"), 3: Layout(">h"), 4: Layout(">i"), 5: Layout(">q"), 8: Layout(">q")}
_TRUE, _FALSE, _BYTES, _STRING, _UUID = 0, 1, 6, 7, 9
_CACHED_HEADERS_BYTES = (
    512  # bytes of headers that are cached when decoded: nearly all messages have one of a few sets of headers
)


class EventStreamMessage(Struct, frozen=True, gc=False):
    headers: Mapping[str, HeaderValue]
    payload: bytes


class EventStreamFramer:
    """Split a byte stream into messages. The result does not depend on how the input is cut into chunks."""

    __slots__ = ("_broken", "_headers", "_headers_block", "_held", "_held_bytes", "_max_message_bytes", "_needed")

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        self._held: list[bytes] = []  # pieces of the incomplete message, joined when it is complete
        self._held_bytes = 0
        self._needed = _PRELUDE.size
        self._broken = False
        self._headers_block = b""  # of the message before: most messages have the headers of the one before
        self._headers: Mapping[str, HeaderValue] = {}

    def feed(self, chunk: bytes) -> list[EventStreamMessage | Broken]:
        if self._broken or not chunk:
            return []
        if self._held:
            self._held.append(chunk)
            self._held_bytes += len(chunk)
            if self._held_bytes < self._needed:
                return []
            chunk = b"".join(self._held)
            self._held.clear()
        messages: list[EventStreamMessage | Broken] = []
        try:
            rest = self._read(chunk, messages)
        except _Malformed as error:
            self._broken = True
            messages.append(Broken(str(error)))
            return messages
        if rest < len(chunk):
            self._held.append(chunk[rest:])
            self._held_bytes = len(chunk) - rest
        return messages

    def finish(self) -> list[EventStreamMessage | Broken]:
        if self._broken or not self._held:
            return []
        self._broken = True
        self._held.clear()
        return [Broken(CUT)]

    def _read(self, data: bytes, messages: list[EventStreamMessage | Broken]) -> int:
        """Append every whole message of `data`; return the offset of the incomplete one."""
        at, end = 0, len(data)
        while at < end:
            if end - at < _PRELUDE_BYTES:
                self._needed = _PRELUDE_BYTES
                break
            total, headers_length, checksum = _read_prelude(data, at)
            actual = crc32(data[at : at + 8])
            if actual != checksum:
                raise _Malformed("the checksum of a frame's prelude is wrong")
            if not SMALLEST + headers_length <= total <= self._max_message_bytes or headers_length > MAX_HEADERS_BYTES:
                raise _Malformed(self._explain_lengths(total, headers_length))
            if end - at < total:
                self._needed = total
                break
            last = at + total - _CRC_BYTES
            if crc32(data[at + 8 : last], actual) != _read_crc(data, last)[0]:
                raise _Malformed("the checksum of a frame is wrong")
            start = at + _PRELUDE_BYTES
            body = start + headers_length
            block = data[start:body]
            if block != self._headers_block:
                self._headers_block = block
                self._headers = (_known_headers if headers_length <= _CACHED_HEADERS_BYTES else _read_headers)(block)
            messages.append(EventStreamMessage(self._headers, data[body:last]))
            at += total
        return at

    def _explain_lengths(self, total: int, headers_length: int) -> str:
        """Return what is wrong with the lengths of a frame."""
        if total > self._max_message_bytes:
            return f"a frame is larger than {self._max_message_bytes} bytes"
        if total < SMALLEST + headers_length:
            return "the lengths of a frame contradict each other"
        return f"the headers of a frame are larger than {MAX_HEADERS_BYTES} bytes"


class _Malformed(Exception):
    """The reason why a stream cannot be read; caught in this module."""


def _read_headers(block: bytes) -> Mapping[str, HeaderValue]:
    headers: dict[str, HeaderValue] = {}
    at = 0
    try:
        while at < len(block):
            start = at + 1
            at = start + block[at]
            name = str(block[start:at], "utf-8")
            value, at = _read_value(block, at + 1, block[at])
            if name in headers:
                raise _Malformed(f"a frame has the header {name!r:.80} twice")
            headers[name] = value
    except (IndexError, ValueError) as error:
        raise _Malformed("the headers of a frame cannot be read") from error
    return headers


_known_headers = lru_cache(maxsize=256)(_read_headers)


def _read_value(block: bytes, at: int, kind: int) -> tuple[HeaderValue, int]:
    """Return the value at `at` and the offset after it; raises ValueError if it is cut off or of an unknown type."""
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind in (_BYTES, _STRING):
        start = at + _LENGTH.size
        end = start + int.from_bytes(block[at:start], "big")
        raw = block[start:end]
        if len(block) < end or len(block) < start:
            raise ValueError("cut off")
        return (str(raw, "utf-8") if kind == _STRING else raw), end
    if kind == _UUID:
        return UUID(bytes=block[at : at + 16]), at + 16
    layout = _INTEGERS.get(kind)
    if layout is None or len(block) < at + layout.size:
        raise ValueError("cut off, or of an unknown type")
    return layout.unpack_from(block, at)[0], at + layout.size


def update_checksums(masked: bytes, original: bytes) -> bytes:
    """Return a stream with masked payloads and matching checksums. Frames that were malformed stay malformed."""
    out = bytearray(masked)
    view = memoryview(original)
    at = 0
    while at + _PRELUDE.size <= len(original):
        total, _, checksum = _PRELUDE.unpack_from(original, at)
        last = at + total - _CRC.size
        if total < SMALLEST or crc32(view[at : at + 8]) != checksum or at + total > len(original):
            break
        if crc32(view[at:last]) == _CRC.unpack_from(original, last)[0]:
            out[at : at + _PRELUDE.size] = original[at : at + _PRELUDE.size]
            _CRC.pack_into(out, last, crc32(memoryview(out)[at:last]))
        at += total
    return bytes(out)

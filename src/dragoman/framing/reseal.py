"""AWS event streams whose payloads were masked come in; they go out with checksums that are right again."""

from struct import Struct as Layout
from zlib import crc32

_PRELUDE = Layout(">III")
_CRC = Layout(">I")
_SMALLEST = 16


def update_checksums(masked: bytes, original: bytes) -> bytes:
    """Frame by frame: what was whole before stays whole, what was broken before stays broken."""
    out = bytearray(masked)
    view = memoryview(original)
    at = 0
    while at + _PRELUDE.size <= len(original):
        total, _, checksum = _PRELUDE.unpack_from(original, at)
        last = at + total - _CRC.size
        if total < _SMALLEST or crc32(view[at : at + 8]) != checksum or at + total > len(original):
            break
        if crc32(view[at:last]) == _CRC.unpack_from(original, last)[0]:
            out[at : at + _PRELUDE.size] = original[at : at + _PRELUDE.size]
            _CRC.pack_into(out, last, crc32(memoryview(out)[at:last]))
        at += total
    return bytes(out)

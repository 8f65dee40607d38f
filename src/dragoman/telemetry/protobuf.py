"""Numbers of fields and their values come in; the bytes of a protobuf message go out, less what is a default."""

import struct
from collections.abc import Iterable

_DOUBLE = struct.Struct("<d")
_FIXED64 = struct.Struct("<Q")
_SMALL = tuple(bytes((number,)) for number in range(0x80))


def varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _SMALL[number]
    number &= 0xFFFFFFFFFFFFFFFF  # negative numbers are written in two's complement
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(field: int, body: bytes) -> bytes:
    """Also a part that is empty: it is there."""
    return varint(field << 3 | 2) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    return message(field, value.encode(errors="replace")) if value else b""


def blob(field: int, value: bytes) -> bytes:
    return message(field, value) if value else b""


def integer(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""


def chosen_integer(field: int, value: int) -> bytes:
    """Of a oneof, where even the default says which was chosen."""
    return varint(field << 3) + varint(value)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + _DOUBLE.pack(value)


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + _FIXED64.pack(value)


def packed_fixed64(field: int, values: Iterable[int]) -> bytes:
    return blob(field, b"".join(map(_FIXED64.pack, values)))


def packed_double(field: int, values: Iterable[float]) -> bytes:
    return blob(field, b"".join(map(_DOUBLE.pack, values)))

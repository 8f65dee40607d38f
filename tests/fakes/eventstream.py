"""AWS event-stream messages as bytes, for tests and for the fake Kiro."""

from collections.abc import Mapping
from struct import pack
from uuid import UUID
from zlib import crc32

import msgspec

Typed = tuple[int, object]
"""A header's value with its type on the wire, where the value alone does not tell it."""


def encode_message(headers: Mapping[str, bool | int | str | bytes | UUID | Typed], payload: bytes) -> bytes:
    """One message. A plain int is written with 32 bits; `(type, value)` chooses any of the ten types."""
    block = b"".join(_header(name, value) for name, value in headers.items())
    prelude = pack(">II", 16 + len(block) + len(payload), len(block))
    rest = prelude + pack(">I", crc32(prelude)) + block + payload
    return rest + pack(">I", crc32(rest))


def event(name: str, payload: object) -> bytes:
    """An event with its payload as JSON."""
    headers = {":message-type": "event", ":event-type": name, ":content-type": "application/json"}
    return encode_message(headers, _json(payload))


def exception(name: str, payload: object) -> bytes:
    return encode_message({":message-type": "exception", ":exception-type": name}, _json(payload))


def error(code: str, message: str) -> bytes:
    return encode_message({":message-type": "error", ":error-code": code, ":error-message": message}, b"")


def _json(payload: object) -> bytes:
    return payload if isinstance(payload, bytes) else msgspec.json.encode(payload)


def _header(name: str, value: object) -> bytes:
    kind, plain = value if isinstance(value, tuple) else (_type_of(value), value)
    return pack(">B", len(name.encode())) + name.encode() + pack(">B", kind) + _value(kind, plain)


def _type_of(value: object) -> int:
    if isinstance(value, bool):
        return 0 if value else 1
    return {int: 4, bytes: 6, str: 7, UUID: 9}[type(value)]


def _value(kind: int, value: object) -> bytes:
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, str | bytes):
        raw = value.encode() if isinstance(value, str) else value
        return pack(">H", len(raw)) + raw
    formats = {2: ">b", 3: ">h", 4: ">i", 5: ">q", 8: ">q"}
    return pack(formats[kind], value) if kind in formats else b""

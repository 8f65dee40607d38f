"""Ways to spoil JSON bodies: values of other types in every place, and bytes flipped, dropped, inserted or cut off."""

import random
from collections.abc import Iterator

import msgspec

from wire_json import Json

Place = tuple[str | int, ...]

DEEP = 5_000
# Encoded, for some of it is no value that a decoder of ours would take.
VALUES: tuple[bytes, ...] = (
    *(b"null", b"true", b"0", b"-1", b"1.5", b"1e308", b"1e999", b"-1e308", b"9" * 30, b"-" + b"9" * 400),
    *(b'""', b'"x"', b'" "', b'"\\ud800"', b'"\xff\xfe"', b'"\\u0000"', b'"{}"', b'"' + b"x" * 2_000 + b'"'),
    *(
        b"[]",
        b"{}",
        b"[null]",
        b"[[]]",
        b"[{}]",
        b'["x"]',
        b"[1]",
        b'{"type":null}',
        b'{"type":"x"}',
        b'{"a":{"b":[1]}}',
    ),
    *(b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"[" * DEEP, b"NaN", b""),
)
_MARK = "\u2042mark\u2042"
_ENCODED_MARK = msgspec.json.encode(_MARK)


def places(value: Json, at: Place = ()) -> Iterator[Place]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*at, key)
        yield from places(inner, (*at, key))


def with_value(body: Json, at: Place, value: bytes) -> bytes:
    """Return the JSON of the body with this encoded value in that place."""
    body = _copy(body)
    _holder(body, at)[at[-1]] = _MARK
    return msgspec.json.encode(body).replace(_ENCODED_MARK, value)


def without(body: Json, at: Place) -> bytes:
    body = _copy(body)
    del _holder(body, at)[at[-1]]
    return msgspec.json.encode(body)


def with_twin_key(body: Json, at: Place, value: bytes) -> bytes:
    """Return the JSON of the body with a second key of the same name, which holds this encoded value."""
    key = at[-1]
    if not isinstance(key, str):
        return with_value(body, at, value)
    body = _copy(body)
    holder = _holder(body, at)
    holder[_MARK] = None
    twin = msgspec.json.encode(key) + b":" + value
    return msgspec.json.encode(body).replace(_ENCODED_MARK + b":null", twin)


def _copy(body: Json) -> Json:
    """Return a deep copy; `copy.deepcopy` takes several times as long."""
    return msgspec.json.decode(msgspec.json.encode(body))


def _holder(body: Json, at: Place) -> Json:
    for key in at[:-1]:
        body = body[key]
    return body


def spoil_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to three of them changed, or a piece dropped, doubled, inserted or cut off."""
    spoilt = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        if not spoilt:
            break
        at = chance.randrange(len(spoilt))
        match chance.randrange(6):
            case 0:
                spoilt[at] ^= 1 << chance.randrange(8)
            case 1:
                del spoilt[at : at + chance.randrange(1, 30)]
            case 2:
                spoilt[at:at] = chance.randbytes(chance.randrange(1, 6))
            case 3:
                spoilt[at:at] = chance.choice(
                    (b"\xff", b"\xed\xa0\x80", b"\xc3", b'"', b"{", b"}", b",", b"\\", b"\x00")
                )
            case 4:
                spoilt[at:at] = spoilt[at : at + chance.randrange(1, 60)]
            case _:
                del spoilt[at:]
    return bytes(spoilt)

"""JSON as clients and servers write it comes in; what a decoder makes of it goes out, half surrogate pairs mended."""

import re
from typing import TypeVar

import msgspec

_T = TypeVar("_T")

# A surrogate's escape with the backslashes before it, which tell whether it is one; group 2 if it is a whole pair.
_SURROGATE_ESCAPE = re.compile(
    rb"(?<!\\)((?:\\\\)*+\\)u[dD](?:([89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|[89a-fA-F][0-9a-fA-F]{2})"
)


def read_json(decoder: msgspec.json.Decoder[_T], json: bytes | msgspec.Raw) -> _T:
    """What the decoder makes of it; where that fails for half a surrogate pair, what it makes of it mended."""
    try:
        return decoder.decode(json)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = mend_surrogates(bytes(json))
        if mended == bytes(json):
            raise
        return decoder.decode(mended)


def mend_surrogates(json: bytes) -> bytes:
    """The same JSON with every escape of half a surrogate pair as `\\ufffd`; the length stays the same.

    Clients and servers that cut strings at UTF-16 units write such escapes, and msgspec refuses the whole
    text for one. Costs too much for every text: for those that could not be decoded.
    """
    if rb"\ud" not in json and rb"\uD" not in json:
        return json
    return _SURROGATE_ESCAPE.sub(lambda found: found[0] if found[2] else found[1] + b"ufffd", json)

"""JSON as clients and servers write it comes in; what a decoder makes of it goes out, half surrogate pairs mended."""

import re
from collections.abc import Collection
from typing import TypeVar

import msgspec

_T = TypeVar("_T")

_WRONG_FIELDS = 8  # in one text, before it is taken for something else altogether
_PLACE = re.compile(r"at `\$([^`]*)`")  # how msgspec says where an error is: `$.choices[0].logprobs`
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_anything = msgspec.json.Decoder(float_hook=float)  # 1e999 too, which is read as infinite and written as null
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])

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
        mended = replace_lone_surrogates(bytes(json))
        if mended == bytes(json):
            raise
        return decoder.decode(mended)


def read_json_leniently(decoder: msgspec.json.Decoder[_T], json: bytes | msgspec.Raw, beside: Collection[str]) -> _T:
    """What the decoder makes of it without those of the fields `beside` the point that have a wrong type.

    A reply is none the worse for a count that cannot be read.
    """
    try:
        return decoder.decode(json)  # as nearly always
    except msgspec.DecodeError:
        pass
    for _ in range(_WRONG_FIELDS):
        try:
            return read_json(decoder, json)
        except msgspec.ValidationError as error:
            fewer = _without(json, str(error), beside)
            if fewer is None:
                raise
            json = fewer
    return read_json(decoder, json)


def _without(json: bytes | msgspec.Raw, error: str, beside: Collection[str]) -> bytes | None:
    """The same JSON without the field that the error is about; None where that one matters."""
    found = _PLACE.search(error)
    steps = [int(index) if index else name for name, index in _STEP.findall(found[1])] if found else []
    end = next((number for number, step in enumerate(steps) if step in beside), None)
    if end is None:
        return None
    body = holder = read_json(_anything, json)
    try:
        for step in steps[:end]:
            holder = holder[step]
        del holder[steps[end]]
    except (LookupError, TypeError):  # of two fields with one name the decoder minds both, and this one is the other
        return None
    return msgspec.json.encode(body)


def replace_lone_surrogates(json: bytes) -> bytes:
    """The same JSON with every escape of half a surrogate pair as `\\ufffd`; the length stays the same.

    Clients and servers that cut strings at UTF-16 units write such escapes, and msgspec refuses the whole
    text for one. Costs too much for every text: for those that could not be decoded.
    """
    if rb"\ud" not in json and rb"\uD" not in json:
        return json
    return _SURROGATE_ESCAPE.sub(lambda found: found[0] if found[2] else found[1] + b"ufffd", json)


def replace_invalid_utf8(data: bytes) -> bytes:
    """Return the bytes with every sequence that is not UTF-8 replaced by U+FFFD: it costs a character, not the text."""
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


def is_json_object(json: bytes) -> bool:
    """Whether this is a JSON object, whatever it holds; one that nests too deeply to be read counts."""
    try:
        _object.decode(replace_invalid_utf8(json))
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


class _Count(msgspec.Struct):
    input_tokens: int


_count = msgspec.json.Decoder(_Count)


def read_input_tokens(body: bytes) -> int | None:
    """Return the number of input tokens that a body states; None if it states none, as an error does."""
    try:
        return _count.decode(body).input_tokens
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None

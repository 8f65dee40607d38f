"""Decode JSON as clients and servers really write it: with lone surrogates, invalid UTF-8, or wrong types."""

import re
from collections.abc import Collection
from typing import TypeVar

import msgspec

_T = TypeVar("_T")
_D = TypeVar("_D")

# What decoding bytes that others wrote may raise: for no JSON or a wrong type, for invalid UTF-8, for deep nesting.
JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_MAX_WRONG_FIELDS = 8  # of wrong type that are ignored in one text before it is rejected
_PLACE = re.compile(r"at `\$([^`]*)`")  # msgspec's path of an error: `$.choices[0].logprobs`
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_REPLACEMENT = b"ufffd"  # as long as what it replaces
_any_json = msgspec.json.Decoder(float_hook=float)  # 1e999 too: it is read as infinity and written as null
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])

# A surrogate's escape, with the backslashes before it (an even number of them escapes it); group 2 is a whole pair.
_SURROGATE_ESCAPE = re.compile(
    rb"(?<!\\)((?:\\\\)*+\\)u[dD](?:([89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|[89a-fA-F][0-9a-fA-F]{2})"
)


def decode_or(decoder: msgspec.json.Decoder[_T], json: bytes | str | msgspec.Raw, otherwise: _D) -> _T | _D:
    """Decode JSON that others wrote; return `otherwise` if it is none, or none of that type."""
    try:
        return decoder.decode(json)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return otherwise


def parse_or(json: bytes | str | msgspec.Raw, type: type[_T], otherwise: _D) -> _T | _D:
    """Do the same for a type that is read too rarely to have a decoder."""
    try:
        return msgspec.json.decode(json, type=type)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return otherwise


def read_json(decoder: msgspec.json.Decoder[_T], json: bytes | msgspec.Raw) -> _T:
    """Decode JSON. If that fails because of lone surrogates, replace them and decode again."""
    try:
        return decoder.decode(json)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        repaired = replace_lone_surrogates(bytes(json))
        if repaired == bytes(json):
            raise
        return decoder.decode(repaired)


def read_json_leniently(decoder: msgspec.json.Decoder[_T], json: bytes | msgspec.Raw, optional: Collection[str]) -> _T:
    """Decode JSON, ignoring those of the `optional` fields that have a wrong type.

    A reply is still useful if, say, one of its token counts cannot be read.
    """
    try:
        return decoder.decode(json)  # succeeds nearly always
    except msgspec.DecodeError:
        pass
    for _ in range(_MAX_WRONG_FIELDS):
        try:
            return read_json(decoder, json)
        except msgspec.ValidationError as error:
            shorter = _remove_field(json, str(error), optional)
            if shorter is None:
                raise
            json = shorter
    return read_json(decoder, json)


def _remove_field(json: bytes | msgspec.Raw, error: str, optional: Collection[str]) -> bytes | None:
    """Return the JSON without the field that the error is about; None if that field is not optional."""
    found = _PLACE.search(error)
    steps = [int(index) if index else name for name, index in _STEP.findall(found[1])] if found else []
    end = next((number for number, step in enumerate(steps) if step in optional), None)
    if end is None:
        return None
    body = holder = read_json(_any_json, json)
    try:
        for step in steps[:end]:
            holder = holder[step]
        del holder[steps[end]]
    except (LookupError, TypeError):  # a duplicate key: the error is about the other one
        return None
    return msgspec.json.encode(body)


def replace_lone_surrogates(json: bytes) -> bytes:
    """Return the JSON with every escape of a lone surrogate replaced by `\\ufffd`; the length stays the same.

    Clients and servers that cut strings between UTF-16 units write such escapes, and msgspec rejects the whole text
    for one. This is too slow for every text: use it for texts that could not be decoded.
    """
    if rb"\ud" not in json and rb"\uD" not in json:
        return json
    repaired = bytearray(json)  # in place: to join millions of pieces would let nothing else run for long
    for found in _SURROGATE_ESCAPE.finditer(json):
        if found[2] is None:
            at = found.end(1)
            repaired[at : at + len(_REPLACEMENT)] = _REPLACEMENT
    return bytes(repaired)


def replace_invalid_utf8(data: bytes) -> bytes:
    """Return the bytes with every invalid UTF-8 sequence replaced by U+FFFD, so that the rest stays readable."""
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


def is_json_object(json: bytes) -> bool:
    """Return whether this is a JSON object, even one that nests too deeply to be decoded."""
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

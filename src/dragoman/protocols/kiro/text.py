"""Strings and JSON values come in; the same without halves of surrogate pairs go out, which no JSON may hold."""

import re

import msgspec

_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(value: object) -> bytes:
    """The JSON of a value. Only one that cannot be written is walked and mended."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value)))


def json_text(value: object) -> str:
    return encode(value).decode()


def _without_surrogates(value: object) -> object:
    match value:
        case str():
            return _SURROGATE.sub("", value)
        case dict():
            return {_without_surrogates(key): _without_surrogates(held) for key, held in value.items()}
        case list():
            return [_without_surrogates(held) for held in value]
        case _:
            return value

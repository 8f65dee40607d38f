"""Typed access to the JSON object of a request, with a record of the fields that were not read.

An explicit null equals an absent key. A wrong value raises `BadField` with its JSON pointer.
"""

from collections.abc import Collection
from typing import Self, TypeVar, overload

import msgspec
from msgspec import Struct, field

from dragoman.translate.framing.jsonread import read_json
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.ports import CallHead
from dragoman.translate.hub.request import Ext, escape_key

_SHOWN = 80

_any_json = msgspec.json.Decoder()
_NUMBER = int | float  # made once


class BadField(BadRequest):
    """A wrong value in a client's request: `at` is its JSON pointer, the message names the field and the value."""

    def __init__(self, at: str, problem: str) -> None:
        super().__init__(at, f"{at or 'the body'} {problem}")


def read_body(body: bytes) -> dict[str, object]:
    """Return the JSON object of a request's body; raises BadField."""
    try:
        value = read_json(_any_json, body)
    except RecursionError as error:
        raise BadField("", "nests too deeply") from error
    except ValueError as error:
        raise BadField("", f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadField("", "must be a JSON object")
    return value


class Fields(Struct, eq=False):
    """A JSON object that records which keys were read, so that no field is lost unnoticed."""

    _raw: dict[str, object]
    at: str = ""
    _read: set[str] = field(default_factory=set)

    def pointer(self, key: str) -> str:
        """Return the JSON pointer (RFC 6901) of a key of this object."""
        if "~" in key or "/" in key:  # rare, and this function is called for every value
            key = escape_key(key)
        return f"{self.at}/{key}"

    def has(self, key: str) -> bool:
        """Return whether the key exists and is not null. Does not count as reading."""
        return self._raw.get(key) is not None

    def has_any(self, keys: frozenset[str]) -> bool:
        """Return whether one of the keys exists, even if it is null. Does not count as reading."""
        return not keys.isdisjoint(self._raw)

    def raw(self, key: str) -> object | None:
        """Return the decoded JSON value of any type."""
        value = self._raw.get(key)
        if value is not None:  # most optional fields are absent
            self._read.add(key)
        return value

    def names(self) -> list[str]:
        """Return the keys that exist and are not null."""
        return [key for key, value in self._raw.items() if value is not None]

    def rest(self) -> dict[str, object]:
        """Return the fields that were not read. Objects returned by `obj` and `objects` report their own."""
        if len(self._read) == len(self._raw):
            return {}
        return {key: value for key, value in self._raw.items() if value is not None and key not in self._read}

    def bad(self, key: str, requirement: str) -> BadField:
        """Return the error for a wrong value: `raise fields.bad("n", "must be 1")`."""
        return BadField(self.pointer(key), f"{requirement}, got {_format_value(self._raw.get(key))}")

    @overload
    def text(self, key: str) -> str | None: ...
    @overload
    def text(self, key: str, default: str) -> str: ...
    def text(self, key: str, default: str | None = None) -> str | None:
        value = self._raw.get(key)
        if value is None:
            return default
        self._read.add(key)
        if isinstance(value, str):
            return value
        raise self.bad(key, "must be a string")

    def number(self, key: str) -> float | None:
        value = self._raw.get(key)
        if value is None:
            return None
        self._read.add(key)
        if isinstance(value, _NUMBER) and not isinstance(value, bool):
            return value
        raise self.bad(key, "must be a number")

    def integer(self, key: str) -> int | None:
        """Return an integer. 3.0 is accepted, true is not."""
        value = self._raw.get(key)
        if value is None:
            return None
        self._read.add(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise self.bad(key, "must be an integer")

    @overload
    def flag(self, key: str) -> bool | None: ...
    @overload
    def flag(self, key: str, default: bool) -> bool: ...
    def flag(self, key: str, default: bool | None = None) -> bool | None:
        value = self._raw.get(key)
        if value is None:
            return default
        self._read.add(key)
        if isinstance(value, bool):
            return value
        raise self.bad(key, "must be true or false")

    def one_of(self, key: str, allowed: Collection[str]) -> str | None:
        value = self._raw.get(key)
        if value is None:
            return None
        self._read.add(key)
        if isinstance(value, str) and value in allowed:
            return value
        raise self.bad(key, "must be one of " + ", ".join(map(_format_value, sorted(allowed))))

    def obj(self, key: str) -> Self | None:
        value = self._raw.get(key)
        if value is None:
            return None
        self._read.add(key)
        if isinstance(value, dict):
            return self.__class__(value, self.pointer(key))
        raise self.bad(key, "must be an object")

    def raw_obj(self, key: str) -> dict[str, object] | None:
        """Return an object as it is; its fields count as read."""
        value = self._raw.get(key)
        if value is None:
            return None
        self._read.add(key)
        if isinstance(value, dict):
            return value
        raise self.bad(key, "must be an object")

    def items(self, key: str) -> list[object] | None:
        """Return an array with values of any type."""
        value = self._raw.get(key)
        if value is None:
            return None
        self._read.add(key)
        if isinstance(value, list):
            return value
        raise self.bad(key, "must be an array")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of strings."""
        values = self.items(key) or []
        if not all(isinstance(value, str) for value in values):
            raise self.bad(key, "must be an array of strings")
        return tuple(map(str, values))

    def objects(self, key: str) -> list[Self] | None:
        """Return an array of objects."""
        value = self._raw.get(key)
        if value is None:
            return None
        self._read.add(key)
        if isinstance(value, list):
            return self._wrap_objects(value, self.pointer(key))
        raise self.bad(key, "must be an array")

    def text_or_objects(self, key: str) -> str | list[Self] | None:
        """Return content, which all protocols allow as a string or an array of parts."""
        value = self._raw.get(key)
        if value is None:
            return None
        self._read.add(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return self._wrap_objects(value, self.pointer(key))
        raise self.bad(key, "must be a string or an array")

    def need_text(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise self._missing(key)
        return value

    def need_obj(self, key: str) -> Self:
        value = self.obj(key)
        if value is None:
            raise self._missing(key)
        return value

    def need_objects(self, key: str) -> list[Self]:
        value = self.objects(key)
        if value is None:
            raise self._missing(key)
        return value

    def _missing(self, key: str) -> BadField:
        return BadField(self.pointer(key), "is required")

    def _wrap_objects(self, items: list[object], at: str) -> list[Self]:
        fields: list[Self] = []
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                raise BadField(f"{at}/{index}", f"must be an object, got {_format_value(item)}")
            fields.append(self.__class__(item, f"{at}/{index}"))
        return fields


def unread_fields(holder: Fields, *inner: Fields | None) -> Ext:
    """Return the unread fields of an object and of the objects inside it, by pointers relative to it."""
    unread: Ext = {}
    if len(holder._read) < len(holder._raw):  # most have none
        _add_unread(unread, holder, holder)
    for fields in inner:
        if fields is not None and len(fields._read) < len(fields._raw):
            _add_unread(unread, holder, fields)
    return unread


def _add_unread(unread: Ext, holder: Fields, fields: Fields) -> None:
    start = len(holder.at) + 1
    for key, value in fields.rest().items():
        unread[fields.pointer(key)[start:]] = value


def _format_value(value: object) -> str:
    if isinstance(value, str):
        value = value[:_SHOWN]
    shown = msgspec.json.encode(value).decode()
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"


NO_MODEL = "missing_required_parameter"  # the code of a request that names no model
MAX_MODEL_BYTES = 1024  # names stay in logs, metrics, caches and usage rows


class Head(Struct):
    """What routing needs of a JSON body, of any type."""

    model: object = None
    stream: object = None
    prompt_cache_key: object = None


_head = msgspec.json.Decoder(Head)


_T_HEAD = TypeVar("_T_HEAD", bound=Struct)


def read_head(decoder: msgspec.json.Decoder[_T_HEAD], body: bytes) -> _T_HEAD:
    """Return a few fields of the JSON object in a body; raises RequestError if there is none."""
    try:
        return read_json(decoder, body)
    except RecursionError:
        raise RequestError(Failure(Kind.BAD_REQUEST, "The body is nested too deeply.")) from None
    except msgspec.ValidationError:
        raise RequestError(Failure(Kind.BAD_REQUEST, "The body must be a JSON object.")) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise RequestError(Failure(Kind.BAD_REQUEST, f"The body is not valid JSON: {problem}.")) from None


def read_body_call(path: str, query: str, body: bytes) -> CallHead:
    """Return what a JSON body says, since path and query do not matter. Raises RequestError."""
    return make_call_head(read_head(_head, body))


def read_call_head(body: bytes, *, needs_model: bool) -> CallHead:
    """Do the same; unless a model is needed, that of a body without one is empty."""
    return make_call_head(read_head(_head, body), needs_model=needs_model)


def make_call_head(head: Head, *, needs_model: bool = True, body_protocol: str = "") -> CallHead:
    """Return what the fields of a JSON body say. Raises RequestError."""
    model = "" if head.model is None and not needs_model else check_model(head.model)
    if head.stream is not None and not isinstance(head.stream, bool):
        raise BadRequest("/stream", f"stream must be true or false, got {_format_value(head.stream)}.")
    key = head.prompt_cache_key
    return CallHead(
        model, bool(head.stream), cache_key=key if isinstance(key, str) else "", body_protocol=body_protocol
    )


def check_model(model: object) -> str:
    """Return the name of a model; raises RequestError if it is none."""
    if model is None:
        raise BadRequest("/model", "model is missing: name the model to use.", code=NO_MODEL)
    if not isinstance(model, str) or not model:
        raise BadRequest("/model", f"model must be a non-empty string, got {_format_value(model)}.")
    if len(model) > MAX_MODEL_BYTES // 4 and len(model.encode(errors="surrogatepass")) > MAX_MODEL_BYTES:
        got = f"{len(model)} characters that begin with {_format_value(model[:60])}"
        raise BadRequest("/model", f"model must be at most {MAX_MODEL_BYTES} bytes long, got {got}.")
    return model

"""Read proto messages in JSON, as Google's clients write them."""

import re
from functools import lru_cache
from typing import Self, overload

from dragoman.framing.fields import Fields
from dragoman.hub.request import Ext

_LETTER = re.compile(r"_([a-z0-9])")


@lru_cache(maxsize=1024)
def to_camel_case(key: str) -> str:
    """Return a key in the spelling of Google's documentation."""
    return _LETTER.sub(lambda found: found[1].upper(), key)


class ProtoFields(Fields):
    """An object whose keys may be in camelCase or snake_case; pointers have the client's spelling.

    Where both spellings are present camelCase counts, even if its value is null; the other one stays unread.
    Numbers may be strings, as proto's JSON writes those of 64 bits.
    """

    __slots__ = ("_written",)

    def __init__(self, raw: dict[str, object], at: str = "") -> None:
        self._written: dict[str, str] = {}  # the client's spelling, where it is another one
        if any("_" in key for key in raw):
            raw = self._rename(raw)
        super().__init__(raw, at)

    def _rename(self, raw: dict[str, object]) -> dict[str, object]:
        renamed: dict[str, object] = {}
        for key, value in raw.items():
            name = to_camel_case(key)
            if name == key or name in raw:
                renamed[key] = value
            else:
                self._written[name] = key
                renamed[name] = value
        return renamed

    def pointer(self, key: str) -> str:
        return super().pointer(self._written.get(key, key))

    def written_name(self, key: str) -> str:
        """Return a key in the client's spelling."""
        return self._written.get(key, key)

    def unread(self, key: str) -> None:
        """Count a field as not read after all: it is lost unless its own protocol gets it."""
        self._read.discard(key)

    @overload
    def number(self, key: str) -> float | None: ...
    @overload
    def number(self, key: str, default: float) -> float: ...
    def number(self, key: str, default: float | None = None) -> float | None:
        value = self.raw(key)
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                raise self.bad(key, "must be a number") from None
        return default if value is None else super().number(key)

    @overload
    def integer(self, key: str) -> int | None: ...
    @overload
    def integer(self, key: str, default: int) -> int: ...
    def integer(self, key: str, default: int | None = None) -> int | None:
        value = self.raw(key)
        if isinstance(value, str):
            try:
                return int(value)
            except ValueError:
                raise self.bad(key, "must be an integer") from None
        return default if value is None else super().integer(key)

    def word(self, key: str) -> str | None:
        """Return the value of an enum, which may be in any case, in upper case."""
        value = self.text(key)
        return None if value is None else value.upper()

    def list_of(self, key: str) -> list[Self]:
        """Return a list of objects; a single object counts as a list of one."""
        if isinstance(self.raw(key), dict):
            return [self.need_obj(key)]
        return self.objects(key) or []

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of strings; a single string counts as an array of one."""
        value = self.raw(key)
        values = [value] if isinstance(value, str) else self.items(key) or []
        if not all(isinstance(item, str) for item in values):
            raise self.bad(key, "must be an array of strings")
        return tuple(map(str, values))


def unread_fields(holder: ProtoFields, *inner: ProtoFields | None) -> Ext:
    """Return the unread fields of an object and of the objects inside it, by pointers relative to it.

    Empty lists and objects mean nothing in proto's JSON.
    """
    start = len(holder.at) + 1
    return {
        fields.pointer(key)[start:]: value
        for fields in (holder, *inner)
        if fields is not None
        for key, value in fields.rest().items()
        if value not in ([], {})
    }

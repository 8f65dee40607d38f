"""Read proto messages and schemas in JSON, as Google's clients write them."""

import re
from functools import lru_cache, partial
from typing import Self

from msgspec import field

from dragoman.translate.framing import fields
from dragoman.translate.framing.fields import Fields
from dragoman.translate.framing.numbers import parse_number
from dragoman.translate.hub.request import Ext
from dragoman.translate.passes.adapt_tools import Schema, map_schemas

_LETTER = re.compile(r"_([a-z0-9])")


@lru_cache(maxsize=1024)
def _to_camel_case(key: str) -> str:
    """Return a key in the spelling of Google's documentation."""
    return _LETTER.sub(lambda found: found[1].upper(), key)


class ProtoFields(Fields):
    """An object whose keys may be in camelCase or snake_case; pointers have the client's spelling.

    Where both spellings are present camelCase counts, even if its value is null; the other one stays unread.
    Numbers may be strings, as proto's JSON writes those of 64 bits.
    """

    _written: dict[str, str] = field(default_factory=dict)  # the client's spelling, where it is another one

    def __post_init__(self) -> None:
        for key in self._raw:  # faster than `any`: this runs for every object
            if "_" in key:
                self._raw = self._rename(self._raw)
                return

    def _rename(self, raw: dict[str, object]) -> dict[str, object]:
        renamed: dict[str, object] = {}
        for key, value in raw.items():
            name = _to_camel_case(key)
            if name == key or name in raw:
                renamed[key] = value
            else:
                self._written[name] = key
                renamed[name] = value
        return renamed

    def pointer(self, key: str) -> str:
        return Fields.pointer(self, self._written.get(key, key))

    @property
    def is_renamed(self) -> bool:
        """Whether the client writes some keys in another spelling than Google's documentation."""
        return bool(self._written)

    def written_name(self, key: str) -> str:
        """Return a key in the client's spelling."""
        return self._written.get(key, key)

    def mark_unread(self, key: str) -> None:
        """Count a field as not read after all: it is lost unless its own protocol gets it."""
        self._read.discard(key)

    def number(self, key: str) -> float | None:
        value = self._raw.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            self._read.add(key)
            try:
                return float(value)
            except ValueError:
                raise self.bad(key, "must be a number") from None
        return super().number(key)

    def integer(self, key: str) -> int | None:
        value = self._raw.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            self._read.add(key)
            try:
                return int(value)
            except ValueError:
                raise self.bad(key, "must be an integer") from None
        return super().integer(key)

    def enum_name(self, key: str) -> str | None:
        """Return the value of an enum, which may be in any case, in upper case."""
        value = self.text(key)
        return None if value is None else value.upper()

    def list_of(self, key: str) -> list[Self]:
        """Return a list of objects; a single object counts as a list of one."""
        value = self._raw.get(key)
        if value is None:
            return []
        if isinstance(value, dict):
            return [self.need_obj(key)]
        return self.objects(key) or []

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of strings; a single string counts as an array of one."""
        value = self.raw(key)
        return (value,) if isinstance(value, str) else super().texts(key)


def unread_fields(holder: ProtoFields, *inner: ProtoFields | None) -> Ext:
    """Return the unread fields of an object and of the objects inside it, by pointers relative to it.

    Empty lists and objects mean nothing in proto's JSON.
    """
    unread = fields.unread_fields(holder, *inner)
    return {pointer: value for pointer, value in unread.items() if value not in ([], {})} if unread else unread


# Schemas: `parameters` and `responseSchema` are written in a dialect of OpenAPI; `parametersJsonSchema` and
# `responseJsonSchema` are JSON Schema, in which some clients write the dialect's types. Only positions that hold
# schemas are read: the name of a property, a default and an enum's values are data.

_COUNTS = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))
_UNSPECIFIED = "type_unspecified"
_MAX_DEPTH = 64  # far more than any real schema has
_HOLDERS = (dict, list)


def read_json_schema(schema: object, depth: int = 0) -> object:
    """Return a JSON Schema with its types in lower case."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    node: Schema = {}
    for key, value in schema.items():
        if key == "type":
            node[key] = _lower_type(value)
        elif isinstance(value, _HOLDERS):
            node[key] = map_schemas(key, value, partial(read_json_schema, depth=depth + 1))
        else:
            node[key] = value
    return node


def read_dialect(schema: object, depth: int = 0) -> object:
    """Return a schema of the OpenAPI dialect as JSON Schema."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    read = partial(read_dialect, depth=depth + 1)
    return {key: map_schemas(key, value, read) for key, value in _read_dialect_node(schema).items()}


def _read_dialect_node(schema: Schema) -> Schema:
    node: Schema = {}
    for key, value in schema.items():
        name = key if _to_camel_case(key) in schema else _to_camel_case(key)
        if value is not None and name not in ("nullable", "example", "propertyOrdering"):
            node[name] = _read_keyword(name, value)
    if node.get("type") == _UNSPECIFIED:
        del node["type"]
    if node.get("format") == "enum" and "enum" in node:
        del node["format"]  # it says no more than the enum itself
    if "example" in schema:
        node.setdefault("examples", [schema["example"]])
    _order_properties(node, schema.get("propertyOrdering", schema.get("property_ordering")))
    return _make_nullable(node) if schema.get("nullable") is True else node


def _read_keyword(name: str, value: object) -> object:
    if name == "type":
        return _lower_type(value)
    count = parse_number(value) if name in _COUNTS and isinstance(value, str) else None
    return value if count is None else count  # proto's JSON writes numbers of 64 bits as strings


def _lower_type(value: object) -> object:
    if isinstance(value, str):
        return value.lower()
    return [item.lower() if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


def _order_properties(node: Schema, order: object) -> None:
    """Put the properties into the order that the client names: JSON Schema has no other way to say it."""
    properties = node.get("properties")
    if isinstance(order, list) and isinstance(properties, dict):
        named = {name: properties[name] for name in order if isinstance(name, str) and name in properties}
        node["properties"] = {**named, **properties}


def _make_nullable(node: Schema) -> Schema:
    kind, values, alternatives = node.get("type"), node.get("enum"), node.get("anyOf")
    if isinstance(values, list) and None not in values:
        node["enum"] = [*values, None]
    if isinstance(kind, str):
        node["type"] = [kind, "null"]
    elif isinstance(kind, list) and "null" not in kind:
        node["type"] = [*kind, "null"]
    elif kind is None and isinstance(alternatives, list):
        node["anyOf"] = [*alternatives, {"type": "null"}]
    return node

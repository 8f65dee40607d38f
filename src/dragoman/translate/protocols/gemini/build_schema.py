"""Fit a JSON Schema to what Gemini understands in `parametersJsonSchema` and `responseJsonSchema`.

Only positions that hold schemas are changed: a property that happens to be named `title` or `const` stays.

Gemini ignores keywords beside a `$ref`, and does not know `allOf`. What such a schema stands for is written out where
it is small. Where it is large, or refers to itself, it becomes a definition of its own, which equal schemas share:
written out, a few types that refer to each other would grow exponentially.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator

import msgspec

from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.passes.adapt_tools import DEFINITIONS, Schema, add_to_description, find_reference

Note = Callable[[str], None]  # why the schema is approximated

_KEPT = frozenset(
    (
        "$id", "$anchor", "title", "description", "minItems", "maxItems", "minimum", "maximum", "required",
        "propertyOrdering",
    )
)  # fmt: skip
_LEFT_OUT = frozenset(("$schema", "$comment", "discriminator", "nullable"))  # without a meaning of their own here
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_ENUMERABLE = frozenset((str, int, float))
_NUMBERS = frozenset(("integer", "number"))
_MAX_DEPTH = 100  # far more than any real schema has
_WEIGHT_BYTES = 64  # of keywords weigh as much as one schema
_MAX_INLINE_WEIGHT = 50  # of what is written out in place of one reference
_MAX_COPIED_WEIGHT = 10_000  # of all that is written more than once: about a megabyte
_SUBSCHEMAS = frozenset(("properties", "items", "prefixItems", "anyOf", "oneOf", "additionalProperties", *DEFINITIONS))

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")

_DESCRIBED = "keywords that Gemini does not know are moved into the description"
_ONE_OF = "oneOf is sent as anyOf: several alternatives may match"
_MERGED = "schemas of allOf that contradict each other are merged"
_NOT_FOUND = "keywords beside a $ref that names nothing in the schema are left out"
_TOO_LARGE = "keywords beside a $ref are left out: the schema would become too large"


def clean_schema(schema: object, at: str, ledger: Ledger) -> object:
    """Return the schema as Gemini takes it. `at` is where it stands; raises BadRequest if it is nested too deeply."""
    try:
        cleaner = _Cleaner(schema if isinstance(schema, dict) else {}, lambda why: ledger.record_approximated(at, why))
        return cleaner.clean_root() if isinstance(schema, dict) else cleaner.clean(schema)
    except RecursionError as error:
        raise BadRequest(at, f"The schema is nested too deeply: more than {_MAX_DEPTH} levels.") from error


def has_no_arguments(schema: object) -> bool:
    """Return whether a schema is that of a function without arguments: Gemini wants none then."""
    if not isinstance(schema, dict) or schema.get("properties"):
        return False
    empty = ("properties", "required", "additionalProperties")
    others = schema.keys() - {"type", "$schema", *empty}
    return not others and not any(schema.get(key) for key in empty)


class _Meaning(msgspec.Struct, frozen=True):
    """What a schema that refers to others stands for."""

    schema: Schema
    weight: int  # of what is copied from the others


class _Cleaner(msgspec.Struct, eq=False):
    """Cleans one schema. References are looked up in its root."""

    _root: Schema
    _note: Note
    _depth: int = 0
    _copies: int = 0  # how many of the schemas that are being cleaned are copies
    _copied_weight: int = 0
    _weights: dict[int, int] = {}  # of schemas of the root, by their identity
    _names: dict[bytes, str] = {}  # of definitions of our own, by the schema that each stands for
    _last_number: int = 0  # in these names
    _unwritten: list[tuple[str, Schema]] = []  # such definitions that are not cleaned yet

    def clean_root(self) -> Schema:
        root = self._root
        if "$ref" in root or "allOf" in root:
            meaning = self._resolve(root)
            clean = self._clean_reference(root) if meaning is None else self._clean_plain(meaning.schema)
        else:  # as in most
            clean = self._clean_plain(root)
        written: Schema = {}
        while self._unwritten:
            name, schema = self._unwritten.pop()
            written[name] = self._clean_copy(schema, 0)
        if not written:
            return clean
        present = clean.get("$defs")
        return {**clean, "$defs": {**(present if isinstance(present, dict) else {}), **written}}

    def clean(self, schema: object) -> object:
        if not isinstance(schema, dict):
            if schema is False:
                self._note(_DESCRIBED)
            return {"description": "(never valid)"} if schema is False else {}
        if self._depth >= _MAX_DEPTH:
            raise RecursionError
        self._depth += 1
        try:
            return self._clean_object(schema)
        finally:
            self._depth -= 1

    def _clean_object(self, schema: Schema) -> Schema:
        if self._copies:
            self._copied_weight += self._weigh(schema)
        if "$ref" not in schema and "allOf" not in schema:  # as most
            return self._clean_plain(schema)
        if not _refers(schema):
            is_reference = isinstance(schema.get("$ref"), str)
            return self._clean_reference(schema) if is_reference else self._clean_plain(self._merge_all_of(schema))
        key = msgspec.json.encode(schema)
        if key in self._names:
            return {"$ref": f"#/$defs/{self._names[key]}"}
        is_full = self._copied_weight >= _MAX_COPIED_WEIGHT
        meaning = None if is_full else self._resolve(schema)
        if meaning is None:
            if is_full:
                self._note(_TOO_LARGE)
            return self._clean_reference(schema) if isinstance(schema.get("$ref"), str) else self._clean_plain(schema)
        if self._copied_weight < _MAX_COPIED_WEIGHT // 2 and self._is_small(meaning):
            return self._clean_copy(meaning.schema, meaning.weight)
        self._copied_weight += meaning.weight
        return {"$ref": f"#/$defs/{self._define(key, schema, meaning.schema)}"}

    def _clean_copy(self, schema: Schema, weight: int) -> Schema:
        self._copies += 1
        self._copied_weight += weight
        try:
            return self._clean_plain(schema)
        finally:
            self._copies -= 1

    def _define(self, key: bytes, schema: Schema, meant: Schema) -> str:
        """Return the name of a new definition, which is written at the end."""
        reference = schema.get("$ref")
        base = _NOT_IN_NAMES.sub("", reference.rpartition("/")[2])[:60] if isinstance(reference, str) else ""
        taken = [names for each in DEFINITIONS if isinstance(names := self._root.get(each), dict)]
        while True:
            self._last_number += 1
            name = f"{base or 'Merged'}_{self._last_number}"
            if not any(name in names for names in taken):
                break
        self._names[key] = name
        self._unwritten.append((name, meant))
        return name

    def _clean_plain(self, schema: Schema) -> Schema:
        clean: Schema = {}
        described: Schema = {}
        for key, value in schema.items():
            if key in _KEPT:  # as most
                clean.setdefault(key, value)  # `minimum` may be there already
            elif key == "type":
                clean[key] = _write_type(value, schema)
            elif not self._clean_keyword(key, value, schema, clean) and key not in _LEFT_OUT:
                described[key] = value
        if described:
            self._note(_DESCRIBED)
        return add_to_description(clean, described)

    def _clean_keyword(self, key: str, value: object, schema: Schema, clean: Schema) -> bool:
        """Write one keyword; return whether Gemini knows it or one like it."""
        match key, value:
            case "properties" | "$defs" | "definitions", dict(named):
                clean["$defs" if key in DEFINITIONS else key] = self._clean_named(named)
            case "items" | "prefixItems", list():
                clean["prefixItems"] = [self.clean(each) for each in value]
            case "items", _:
                clean["items"] = self.clean(value)
            case "additionalProperties", _:
                clean[key] = value if isinstance(value, bool) else self.clean(value)
            case "anyOf" | "oneOf", list() if "anyOf" not in clean:
                if key == "oneOf" and not _are_disjoint(value):
                    self._note(_ONE_OF)
                clean["anyOf"] = [self.clean(each) for each in value]
            case "exclusiveMinimum" | "exclusiveMaximum", int() | float() if _types(schema) - {"null"} == {"integer"}:
                _write_bound(key, value, schema, clean)
            case "format", _:
                kinds = _types(schema) - {"null"}
                return self._keep_if(key, value, bool(kinds) and kinds <= _NUMBERS, clean)
            case "enum", list():
                return self._keep_if(key, value, {*map(type, value)} <= _ENUMERABLE, clean)
            case "const", _:
                kind = _JSON_TYPES.get(type(value))
                if kind is not None:
                    clean.setdefault("type", kind)
                if _is_enumerable(value):
                    clean.setdefault("enum", [value])
                return kind == "null" or _is_enumerable(value)
            case _:
                return False
        return True

    def _keep_if(self, key: str, value: object, is_known: bool, clean: Schema) -> bool:
        if is_known:
            clean.setdefault(key, value)  # a constant may have written it already
        return is_known

    def _clean_named(self, schemas: dict[str, object]) -> Schema:
        return {name: self.clean(each) for name, each in schemas.items()}

    def _clean_reference(self, schema: Schema) -> Schema:
        """Write a reference by itself, with the definitions beside it."""
        reference = schema["$ref"]
        assert isinstance(reference, str)
        clean: Schema = {"$ref": reference.replace("#/definitions/", "#/$defs/", 1)}
        for key in DEFINITIONS & schema.keys():
            value = schema[key]
            clean["$defs"] = self._clean_named(value) if isinstance(value, dict) else {}
        return clean

    def _resolve(self, schema: Schema) -> _Meaning | None:
        """Return what a schema means without `$ref` and `allOf` at its top; None for a reference that stays one."""
        weight = 0
        seen: set[str] = set()
        while isinstance(reference := schema.get("$ref"), str):
            others = {key: value for key, value in schema.items() if _is_sibling(key)}
            found = self._find(reference) if others and reference not in seen else None
            if found is None:
                if others:
                    self._note(_NOT_FOUND)
                return None
            seen.add(reference)
            weight += self._weigh(found)
            if schema is self._root:
                others |= {key: value for key, value in schema.items() if key in DEFINITIONS}
            schema = {**{key: value for key, value in found.items() if key not in DEFINITIONS}, **others}
        return _Meaning(self._merge_all_of(schema), weight + sum(map(self._weigh, self._list_parts(schema))))

    def _find(self, reference: str) -> Schema | None:
        found = find_reference(reference, self._root)
        return found if isinstance(found, dict) else None

    def _merge_all_of(self, schema: Schema) -> Schema:
        """Return the schema with the objects of allOf merged into it; other combinations stay for the description."""
        listed = schema.get("allOf")
        if not isinstance(listed, list):
            return schema
        parts = self._list_parts(schema)
        if any(self._look_up(part) is None for part in listed) or any("allOf" in part for part in parts):
            return schema
        merged = _Merger({key: value for key, value in schema.items() if key != "allOf"})
        for part in parts:
            merged.add(part)
        if merged.has_conflict:
            self._note(_MERGED)
        return merged.schema

    def _list_parts(self, schema: Schema) -> list[Schema]:
        """Return the different schemas of allOf."""
        listed = schema.get("allOf")
        parts = map(self._look_up, listed if isinstance(listed, list) else ())
        return [*{id(part): part for part in parts if part is not None}.values()]

    def _look_up(self, part: object) -> Schema | None:
        if not isinstance(part, dict):
            return None
        reference = part.get("$ref")
        return self._find(reference) if isinstance(reference, str) else part

    # How large a schema is

    def _is_small(self, meaning: _Meaning) -> bool:
        """Return whether a schema may be written out, with all that is written out inside it."""
        weight = meaning.weight
        rest = [_list_subschemas(meaning.schema)]
        while rest and weight <= _MAX_INLINE_WEIGHT:
            each = next(rest[-1], None)
            if each is None:
                rest.pop()
                continue
            weight += self._weigh(each)
            rest.append(_list_subschemas(each))
            for copied in self._list_copied(each):
                weight += self._weigh(copied)
                rest.append(_list_subschemas(copied))
        return weight <= _MAX_INLINE_WEIGHT

    def _list_copied(self, schema: Schema) -> Iterable[Schema]:
        """Return the schemas that a schema refers to and that are copied into it."""
        if not _refers(schema):
            return ()
        reference = schema.get("$ref")
        found = self._find(reference) if isinstance(reference, str) else None
        return self._list_parts(schema) if found is None else (found,)

    def _weigh(self, schema: Schema) -> int:
        """Return the weight of a schema of the root, without the schemas in it."""
        weight = self._weights.get(id(schema))
        if weight is None:
            own = [value for key, value in schema.items() if key not in _SUBSCHEMAS]
            weight = self._weights[id(schema)] = 1 + len(msgspec.json.encode(own)) // _WEIGHT_BYTES
        return weight


class _Merger:
    """Merges schemas into one; where two contradict each other, the first is right."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.has_conflict = False
        self._required: set[Hashable] | None = None
        self._named: dict[str, dict[str, object]] = {}  # properties and definitions that are merged already

    def add(self, part: Schema) -> None:
        for key, value in part.items():
            present = self.schema.get(key)
            if key not in self.schema:
                self.schema[key] = value
            elif key == "required" and isinstance(present, list) and isinstance(value, list):
                if self._required is None:
                    self._required = _freeze_all(present)
                    self.schema["required"] = present = [*present]
                for name in value:
                    if (frozen := _freeze(name)) not in self._required:
                        self._required.add(frozen)
                        present.append(name)
            elif key in ("properties", *DEFINITIONS) and isinstance(present, dict) and isinstance(value, dict):
                self._add_named(key, present, value)
            elif present != value:
                self.has_conflict = True

    def _add_named(self, key: str, present: dict[str, object], schemas: dict[str, object]) -> None:
        if key not in self._named:
            self.schema[key] = self._named[key] = present = {**present}
        for name, schema in schemas.items():
            if present.setdefault(name, schema) != schema:
                self.has_conflict = True


def _refers(schema: Schema) -> bool:
    """Return whether a schema is written out from others: a `$ref` with siblings, or an allOf with a `$ref`."""
    if isinstance(schema.get("$ref"), str):
        return any(map(_is_sibling, schema))
    listed = schema.get("allOf")
    return isinstance(listed, list) and any(isinstance(part, dict) and "$ref" in part for part in listed)


def _is_sibling(key: str) -> bool:
    """Return whether a keyword beside a `$ref` says something about the value."""
    return key[0:1] != "$" and key not in DEFINITIONS


def _list_subschemas(schema: Schema) -> Iterator[Schema]:
    for key in _SUBSCHEMAS & schema.keys():
        value = schema[key]
        inside: Iterable[object] = value if isinstance(value, list) else (value,)
        if key in ("properties", *DEFINITIONS) and isinstance(value, dict):
            inside = value.values()
        yield from (each for each in inside if isinstance(each, dict))


def _write_type(value: object, schema: Schema) -> object:
    """Return the type in lower case, with null where the schema says so in OpenAPI's way."""
    if isinstance(value, str) and "nullable" not in schema:  # as nearly always
        return value.lower()
    names = value if isinstance(value, list) else [value]
    lower = [name.lower() if isinstance(name, str) else name for name in names]
    if schema.get("nullable") is True and "null" not in lower:
        lower.append("null")
    return lower if isinstance(value, list) or len(lower) > 1 else lower[0]


def _types(schema: Schema) -> set[str]:
    value = schema.get("type")
    names = value if isinstance(value, list) else [value]
    return {name.lower() for name in names if isinstance(name, str)}


def _is_enumerable(value: object) -> bool:
    return type(value) in _ENUMERABLE


def _write_bound(key: str, value: float, schema: Schema, clean: Schema) -> None:
    """Write the nearest whole number that an exclusive bound allows, unless an inclusive bound is narrower."""
    low = key == "exclusiveMinimum"
    name, bound = ("minimum", math.floor(value) + 1) if low else ("maximum", math.ceil(value) - 1)
    other = schema.get(name)
    if isinstance(other, int | float):
        bound = max(bound, math.ceil(other)) if low else min(bound, math.floor(other))
    clean[name] = bound


def _are_disjoint(alternatives: Iterable[object]) -> bool:
    """Return whether no value can match two of the schemas: their types, or the values of a property, differ."""
    schemas = [each for each in alternatives if isinstance(each, dict)]
    kinds = [_types(each) for each in schemas]
    if all(kinds) and sum(map(len, kinds)) == len(set[str]().union(*kinds)) and not {*_NUMBERS} <= set().union(*kinds):
        return True
    if _have_distinct_values(schemas):
        return True
    required = [set(names) for each in schemas if isinstance(names := each.get("required"), list)]
    shared = set.intersection(*required) if required and len(required) == len(schemas) else set()
    return any(_have_distinct_values([_property(each, name) for each in schemas]) for name in shared)


def _property(schema: Schema, name: str) -> Schema:
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, dict) else None
    return found if isinstance(found, dict) else {}


def _have_distinct_values(schemas: list[Schema]) -> bool:
    """Return whether every schema allows only certain values, none of which another one allows."""
    seen: set[Hashable] = set()
    for schema in schemas:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if not isinstance(values, list):
            return False
        frozen = _freeze_all(values)
        if not seen.isdisjoint(frozen):
            return False
        seen |= frozen
    return bool(schemas)


def _freeze_all(values: Iterable[object]) -> set[Hashable]:
    try:
        return {*values}  # nearly always numbers or texts, of which there may be many
    except TypeError:
        return {*map(_freeze, values)}


def _freeze(value: object) -> Hashable:
    """Return a value that is equal where the JSON values are, and can be put into a set."""
    if isinstance(value, dict):
        return frozenset((key, _freeze(each)) for key, each in value.items())
    if isinstance(value, list):
        return tuple(map(_freeze, value))
    return value if isinstance(value, Hashable) else None

"""Fit a JSON Schema to what Gemini understands in `parametersJsonSchema` and `responseJsonSchema`.

Only positions that hold schemas are changed: a property that happens to be named `title` or `const` stays.
"""

import math
from collections.abc import Callable, Iterable

from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.passes.adapt_tools import Schema, add_to_description

Note = Callable[[str], None]  # why the schema is approximated

_KEPT = frozenset(
    (
        "$id", "$anchor", "title", "description", "minItems", "maxItems", "minimum", "maximum", "required",
        "propertyOrdering",
    )
)  # fmt: skip
_DEFINITIONS = frozenset(("$defs", "definitions"))
_LEFT_OUT = frozenset(("$schema", "$comment", "discriminator", "nullable"))  # without a meaning of their own here
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_NUMBERS = frozenset(("integer", "number"))
_MAX_DEPTH = 100  # far more than any real schema has

_DESCRIBED = "keywords that Gemini does not know are moved into the description"
_ONE_OF = "oneOf is sent as anyOf: several alternatives may match"
_MERGED = "schemas of allOf that contradict each other are merged"
_RECURSIVE = "keywords beside a recursive $ref are left out"


def clean_schema(schema: object, at: str, ledger: Ledger) -> object:
    """Return the schema as Gemini takes it. `at` is where it stands; raises BadRequest if it is nested too deeply."""
    try:
        return _Cleaner(schema, lambda why: ledger.note_approximated(at, why)).clean(schema)
    except RecursionError as error:
        raise BadRequest(at, f"The schema is nested too deeply: more than {_MAX_DEPTH} levels.") from error


def has_no_arguments(schema: object) -> bool:
    """Return whether a schema is that of a function without arguments: Gemini wants none then."""
    if not isinstance(schema, dict):
        return False
    empty = ("properties", "required", "additionalProperties")
    others = schema.keys() - {"type", "$schema", *empty}
    return not others and not any(schema.get(key) for key in empty)


class _Cleaner:
    """Cleans one schema. References are looked up in its root."""

    def __init__(self, root: object, note: Note) -> None:
        self._root = root if isinstance(root, dict) else {}
        self._note = note
        self._inlined: list[str] = []  # the references that are being written out
        self._depth = 0

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
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._clean_reference(reference, schema)
        schema = self._merge_all_of(schema)
        clean: Schema = {}
        described: Schema = {}
        for key, value in schema.items():
            if not self._clean_keyword(key, value, schema, clean) and key not in _LEFT_OUT:
                described[key] = value
        if described:
            self._note(_DESCRIBED)
        return add_to_description(clean, described)

    def _clean_keyword(self, key: str, value: object, schema: Schema, clean: Schema) -> bool:
        """Write one keyword; return whether Gemini knows it or one like it."""
        match key, value:
            case "type", _:
                clean["type"] = _write_type(value, schema)
            case "properties" | "$defs" | "definitions", dict(named):
                clean["$defs" if key in _DEFINITIONS else key] = self._clean_named(named)
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
            case "exclusiveMinimum" | "exclusiveMaximum", int() | float() if _is_integer(schema):
                _write_bound(key, value, schema, clean)
            case "format", _:
                return self._keep_if(key, value, _is_number(schema), clean)
            case "enum", list():
                return self._keep_if(key, value, all(_is_enumerable(each) for each in value), clean)
            case "const", _:
                return _write_const(value, clean)
            case _:
                return self._keep_if(key, value, key in _KEPT, clean)
        return True

    def _keep_if(self, key: str, value: object, is_known: bool, clean: Schema) -> bool:
        if is_known:
            clean.setdefault(key, value)  # `minimum` may be there already
        return is_known

    def _clean_named(self, schemas: dict[str, object]) -> Schema:
        return {name: self.clean(each) for name, each in schemas.items()}

    def _clean_reference(self, reference: str, schema: Schema) -> Schema:
        """Write a reference; one with siblings that do not begin with a dollar sign is replaced by its schema."""
        others = {key: value for key, value in schema.items() if key[0:1] != "$" and key not in _DEFINITIONS}
        found = self._find(reference) if others else None
        if found is not None and reference not in self._inlined:
            self._inlined.append(reference)
            try:
                return self._clean_object({**found, **others})
            finally:
                self._inlined.pop()
        if others:
            self._note(_RECURSIVE)
        clean: Schema = {"$ref": reference.replace("#/definitions/", "#/$defs/", 1)}
        for key in _DEFINITIONS & schema.keys():
            value = schema[key]
            clean["$defs"] = self._clean_named(value) if isinstance(value, dict) else {}
        return clean

    def _find(self, reference: str) -> Schema | None:
        """Return the schema that a reference into this document names."""
        at: object = self._root
        for key in reference.removeprefix("#").split("/")[1:]:
            at = at.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(at, dict) else None
        return at if isinstance(at, dict) and reference.startswith("#") else None

    def _merge_all_of(self, schema: Schema) -> Schema:
        """Return the schema with the objects of allOf merged into it; other combinations stay for the description."""
        listed = schema.get("allOf")
        if not isinstance(listed, list):
            return schema
        parts = [self._resolve(part) for part in listed]
        merged = {key: value for key, value in schema.items() if key != "allOf"}
        for part in parts:
            if part is None or "allOf" in part:
                return schema
            for key, value in part.items():
                merged[key] = self._merge(key, merged[key], value) if key in merged else value
        return merged

    def _resolve(self, part: object) -> Schema | None:
        if not isinstance(part, dict):
            return None
        reference = part.get("$ref")
        return self._find(reference) if isinstance(reference, str) else part

    def _merge(self, key: str, present: object, value: object) -> object:
        if key == "required" and isinstance(present, list) and isinstance(value, list):
            return [*present, *(name for name in value if name not in present)]
        if key in ("properties", *_DEFINITIONS) and isinstance(present, dict) and isinstance(value, dict):
            if any(present[name] != value[name] for name in present.keys() & value.keys()):
                self._note(_MERGED)
            return {**present, **value, **present}  # in the order in which they are written
        if present != value:
            self._note(_MERGED)
        return present


def _write_type(value: object, schema: Schema) -> object:
    """Return the type in lower case, with null where the schema says so in OpenAPI's way."""
    names = value if isinstance(value, list) else [value]
    lower = [name.lower() if isinstance(name, str) else name for name in names]
    if schema.get("nullable") is True and "null" not in lower:
        lower.append("null")
    return lower if isinstance(value, list) or len(lower) > 1 else lower[0]


def _types(schema: Schema) -> set[str]:
    value = schema.get("type")
    names = value if isinstance(value, list) else [value]
    return {name.lower() for name in names if isinstance(name, str)}


def _is_integer(schema: Schema) -> bool:
    return _types(schema) - {"null"} == {"integer"}


def _is_number(schema: Schema) -> bool:
    kinds = _types(schema) - {"null"}
    return bool(kinds) and kinds <= _NUMBERS


def _is_enumerable(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _write_bound(key: str, value: float, schema: Schema, clean: Schema) -> None:
    """Write the nearest whole number that an exclusive bound allows, unless an inclusive bound is narrower."""
    low = key == "exclusiveMinimum"
    name, bound = ("minimum", math.floor(value) + 1) if low else ("maximum", math.ceil(value) - 1)
    other = schema.get(name)
    if isinstance(other, int | float):
        bound = max(bound, math.ceil(other)) if low else min(bound, math.floor(other))
    clean[name] = bound


def _write_const(value: object, clean: Schema) -> bool:
    kind = _JSON_TYPES.get(type(value))
    if kind is not None:
        clean.setdefault("type", kind)
    if _is_enumerable(value):
        clean.setdefault("enum", [value])
    return kind == "null" or _is_enumerable(value)


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
    seen: list[object] = []
    for schema in schemas:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if not isinstance(values, list) or any(value in seen for value in values):
            return False
        seen += values
    return bool(schemas)

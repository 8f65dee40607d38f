"""Fit a JSON Schema to what Gemini understands in `parametersJsonSchema` and `responseJsonSchema`.

Only positions that hold schemas are changed: a property that happens to be named `title` or `const` stays.
"""

from collections.abc import Callable

from dragoman.framing.json_schema import Schema, add_to_description

Note = Callable[[str], None]  # why the schema is approximated

_KEPT = frozenset(
    (
        "$id", "$ref", "$anchor", "type", "title", "description", "enum", "minItems", "maxItems", "minimum", "maximum",
        "required", "propertyOrdering", "default", "nullable", "minLength", "maxLength", "minProperties",
        "maxProperties", "pattern",
    )
)  # fmt: skip
_NAMED = frozenset(("properties", "$defs", "definitions"))  # their keys are names, their values are schemas
_SINGLE = frozenset(("items", "additionalProperties"))
_LISTS = {"anyOf": "anyOf", "oneOf": "anyOf", "prefixItems": "prefixItems"}
_MEANINGLESS = frozenset(("$schema", "$comment", "examples", "example", "discriminator", "readOnly", "writeOnly"))
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_MAX_DEPTH = 64  # far more than any real schema has
_DESCRIBED = "keywords that Gemini does not know are moved into the description"


def clean_schema(schema: object, note: Note, depth: int = 0) -> object:
    """Return the schema as Gemini takes it. `note` is called with the reason of each approximation."""
    if schema is True or not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return {} if isinstance(schema, bool) else schema
    if "$ref" in schema:
        return _clean_reference(schema, note, depth)
    clean: Schema = {}
    described: Schema = {}
    for key, value in _merge_all_of(schema, note).items():
        if key in _KEPT:
            clean[key] = _lower_type(value) if key == "type" else value
        elif key in _NAMED and isinstance(value, dict):
            clean[key] = {name: clean_schema(each, note, depth + 1) for name, each in value.items()}
        elif key in _SINGLE:
            clean[key] = value if isinstance(value, bool) else clean_schema(value, note, depth + 1)
        elif key in _LISTS and isinstance(value, list) and _LISTS[key] not in clean:
            if key == "oneOf":
                note("oneOf is sent as anyOf")
            clean[_LISTS[key]] = [clean_schema(each, note, depth + 1) for each in value]
        elif not _clean_keyword(key, value, schema, clean) and key not in _MEANINGLESS:
            described[key] = value
    if described:
        note(_DESCRIBED)
    return add_to_description(clean, described)


def _clean_keyword(key: str, value: object, schema: Schema, clean: Schema) -> bool:
    """Write a keyword that Gemini has under another name; return whether there is one."""
    if key == "const":
        clean.setdefault("enum", [value])
        kind = _JSON_TYPES.get(type(value))
        if kind is not None:
            clean.setdefault("type", kind)
        return True
    whole = isinstance(value, int) and not isinstance(value, bool) and schema.get("type") == "integer"
    if whole and isinstance(value, int) and key in ("exclusiveMinimum", "exclusiveMaximum"):
        name, bound = ("minimum", value + 1) if key == "exclusiveMinimum" else ("maximum", value - 1)
        clean.setdefault(name, bound)
        return True
    return False


def _clean_reference(schema: Schema, note: Note, depth: int) -> Schema:
    """A reference may have no siblings but those that begin with a dollar sign."""
    clean: Schema = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            clean[key] = {name: clean_schema(each, note, depth + 1) for name, each in value.items()}
        elif key.startswith("$"):
            clean[key] = value
        elif key not in ("title", "description"):
            note("keywords beside a $ref are left out")
        else:
            note("the description beside a $ref is left out")
    clean.pop("$schema", None)
    clean.pop("$comment", None)
    return clean


def _merge_all_of(schema: Schema, note: Note) -> Schema:
    """Return the schema with the objects of allOf merged into it; other combinations stay for the description."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or not parts or not all(_is_plain_object(part) for part in parts):
        return schema
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in parts:
        assert isinstance(part, dict)
        for key, value in part.items():
            present = merged.get(key)
            if isinstance(present, dict) and isinstance(value, dict):
                merged[key] = {**value, **present}
            elif isinstance(present, list) and isinstance(value, list) and key == "required":
                merged[key] = [*present, *(name for name in value if name not in present)]
            else:
                merged.setdefault(key, value)
    note("the schemas of allOf are merged")
    return merged


def _is_plain_object(part: object) -> bool:
    known = {"type", "properties", "required", "title", "description", "additionalProperties"}
    return isinstance(part, dict) and part.keys() <= known


def _lower_type(value: object) -> object:
    if isinstance(value, str):
        return value.lower()
    return [item.lower() if isinstance(item, str) else item for item in value] if isinstance(value, list) else value

"""A JSON Schema of any vendor comes in; one that Anthropic accepts goes out, its other demands told in words."""

from collections.abc import Callable

import msgspec

Schema = dict[str, object]

_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"},
)
_KEPT = frozenset({"type", "enum", "const", "title", "required", "default", "description"})
_SILENT = frozenset({"additionalProperties", "$schema", "$id", "$comment"})  # nothing to tell a model
_NAMED = frozenset({"properties", "$defs", "definitions"})  # their keys are names, their values are schemas
_CHOICES = {"oneOf": "anyOf", "anyOf": "anyOf", "allOf": "allOf"}


def clean_output(schema: object) -> object:
    """The schema of a structured output: objects are closed, and limits move into descriptions."""
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:  # a reference stands alone, but the root also holds what is referred to
        kept: Schema = {"$ref": schema["$ref"]}
        return kept | {key: _each(value) for key, value in schema.items() if key in ("$defs", "definitions")}
    clean: Schema = {}
    told: Schema = {}
    for key, value in schema.items():
        if key in _KEPT or (key == "format" and value in _FORMATS) or (key == "minItems" and value in (0, 1)):
            clean[key] = value
        elif key in _NAMED:
            clean[key] = _each(value)
        elif key in _CHOICES and isinstance(value, list) and _CHOICES[key] not in clean:
            clean[_CHOICES[key]] = [clean_output(choice) for choice in value]
        elif key == "items" and isinstance(value, dict):
            clean[key] = clean_output(value)
        elif key not in _SILENT or isinstance(value, dict):  # what a map's values are is worth telling
            told[key] = value
    if schema.get("type") == "object" or "properties" in schema:
        clean["additionalProperties"] = False
    return _with_words(clean, told)


def object_root(schema: object, approximate: Callable[[str], None]) -> Schema:
    """The schema of a tool's input: its root must be a plain object."""
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    told = {key: value for key, value in schema.items() if key in _CHOICES}
    if told:
        approximate("alternatives at the root of a tool's schema are told in its description")
    root = {key: value for key, value in schema.items() if key not in told}
    if root.get("type") != "object":
        root = {"type": "object", **{key: value for key, value in root.items() if key != "type"}}
    return _with_words(root, told)


def _each(schemas: object) -> object:
    if not isinstance(schemas, dict):
        return schemas
    return {name: clean_output(schema) for name, schema in schemas.items()}


def _with_words(schema: Schema, told: Schema) -> Schema:
    if not told:
        return schema
    words = "; ".join(f"{key}: {msgspec.json.encode(value).decode()}" for key, value in told.items())
    description = schema.get("description")
    return {**schema, "description": f"{description}\n({words})" if description else f"({words})"}

"""A JSON Schema comes in; it goes out without what a vendor does not take there: its description tells that instead."""

from collections.abc import Callable

import msgspec

Schema = dict[str, object]

_ALTERNATIVES = frozenset({"anyOf", "oneOf", "allOf"})


def make_root_object(schema: object, approximate: Callable[[str], None]) -> Schema:
    """The schema of a tool's input: its root must be a plain object."""
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    told = {key: value for key, value in schema.items() if key in _ALTERNATIVES}
    if told:
        approximate("alternatives at the root of a tool's schema are told in its description")
    root = {key: value for key, value in schema.items() if key not in told}
    if root.get("type") != "object":
        root = {"type": "object", **{key: value for key, value in root.items() if key != "type"}}
    return add_to_description(root, told)


def add_to_description(schema: Schema, told: Schema) -> Schema:
    if not told:
        return schema
    words = "; ".join(f"{key}: {msgspec.json.encode(value).decode()}" for key, value in told.items())
    description = schema.get("description")
    return {**schema, "description": f"{description}\n({words})" if description else f"({words})"}

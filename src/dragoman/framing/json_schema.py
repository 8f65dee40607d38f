"""Move the parts of a JSON Schema that a vendor does not accept into its description."""

from collections.abc import Callable

import msgspec

Schema = dict[str, object]

_ALTERNATIVES = frozenset({"anyOf", "oneOf", "allOf"})


def make_root_object(schema: object, approximate: Callable[[str], None]) -> Schema:
    """Return the schema of a tool's input with a plain object as its root."""
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    moved = {key: value for key, value in schema.items() if key in _ALTERNATIVES}
    if moved:
        approximate("alternatives at the root of a tool's schema are moved into its description")
    root = {key: value for key, value in schema.items() if key not in moved}
    if root.get("type") != "object":
        root = {"type": "object", **{key: value for key, value in root.items() if key != "type"}}
    return add_to_description(root, moved)


def add_to_description(schema: Schema, keywords: Schema) -> Schema:
    """Return the schema with these keywords as text at the end of its description."""
    if not keywords:
        return schema
    words = "; ".join(f"{key}: {msgspec.json.encode(value).decode()}" for key, value in keywords.items())
    description = schema.get("description")
    return {**schema, "description": f"{description}\n({words})" if description else f"({words})"}

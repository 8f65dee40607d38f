"""Read the schemas of Gemini clients as JSON Schema.

`parameters` and `responseSchema` are written in a dialect of OpenAPI; `parametersJsonSchema` and `responseJsonSchema`
are JSON Schema, in which some clients write the dialect's types. Only positions that hold schemas are read: the name
of a property, a default and an enum's values are data.
"""

from collections.abc import Callable

from dragoman.protocols.gemini.parse_fields import to_camel_case

Schema = dict[str, object]

_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_SINGLE = frozenset(
    ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems")
)
_NAMED = frozenset(("properties", "$defs", "defs", "definitions", "patternProperties", "dependentSchemas"))
_COUNTS = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))
_UNSPECIFIED = "type_unspecified"
_MAX_DEPTH = 64  # far more than any real schema has


def read_json_schema(schema: object) -> object:
    """Return a JSON Schema with its types in lower case."""
    return _read(schema, 0, _read_json_node)


def read_dialect(schema: object) -> object:
    """Return a schema of the OpenAPI dialect as JSON Schema."""
    return _read(schema, 0, _read_dialect_node)


def _read(schema: object, depth: int, read_node: Callable[[Schema], Schema]) -> object:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    node = read_node(schema)
    for key, value in node.items():
        if key in _NAMED and isinstance(value, dict):
            node[key] = {name: _read(each, depth + 1, read_node) for name, each in value.items()}
        elif key in _LISTS and isinstance(value, list):
            node[key] = [_read(each, depth + 1, read_node) for each in value]
        elif key in _SINGLE:
            node[key] = _read(value, depth + 1, read_node)
    return node


def _read_json_node(schema: Schema) -> Schema:
    return {key: _lower_type(value) if key == "type" else value for key, value in schema.items()}


def _read_dialect_node(schema: Schema) -> Schema:
    node: Schema = {}
    for key, value in schema.items():
        name = key if to_camel_case(key) in schema else to_camel_case(key)
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
    if name in _COUNTS and isinstance(value, str) and value.isdigit():
        return int(value)  # proto's JSON writes numbers of 64 bits as strings
    return value


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

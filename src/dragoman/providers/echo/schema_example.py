"""The smallest value that satisfies a JSON Schema, as far as it can be derived."""

from collections.abc import Mapping

from dragoman.hub.request import Json, split_pointer

MAX_DEPTH = 32  # of recursive schemas

_BY_FORMAT = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "echo@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}


def make_example(schema: Json) -> Json:
    return _make_example(schema, schema, 0)


def _make_example(schema: Json, root: Json, depth: int) -> Json:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return {} if depth == 0 else None
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _make_example(_resolve_reference(reference, root), root, depth + 1)
    merged = _merge_schemas(schema, root, depth)
    return _example_of_type(merged, root, depth)


def _merge_schemas(schema: Mapping[str, Json], root: Json, depth: int) -> Mapping[str, Json]:
    """Return the schema merged with all of `allOf` and the first of `anyOf` or `oneOf`."""
    parts: list[Json] = list(_list(schema, "allOf"))
    for key in ("anyOf", "oneOf"):
        parts += _list(schema, key)[:1]
    out = dict(schema)
    for part in parts:
        if isinstance(part, Mapping) and isinstance(part.get("$ref"), str):
            part = _resolve_reference(str(part["$ref"]), root)
        if isinstance(part, Mapping) and depth < MAX_DEPTH:
            taken = _merge_schemas(part, root, depth + 1)
            properties = {**_mapping(out, "properties"), **_mapping(taken, "properties")}
            required = [*_list(out, "required"), *_list(taken, "required")]
            out = {**taken, **out, "properties": properties, "required": required}
    return out


def _example_of_type(schema: Mapping[str, Json], root: Json, depth: int) -> Json:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    match kind:
        case "string":
            return _example_text(schema)
        case "integer" | "number":
            return _example_number(schema, whole=kind == "integer")
        case "boolean":
            return False
        case "null":
            return None
        case "array":
            minimum = schema.get("minItems")
            count = min(minimum, 100) if isinstance(minimum, int) else 0
            return [_make_example(schema.get("items", {}), root, depth + 1) for _ in range(count)]
        case _:
            properties = _mapping(schema, "properties")
            names = [name for name in _list(schema, "required") if isinstance(name, str)]
            return {name: _make_example(properties.get(name, {}), root, depth + 1) for name in names}


def _example_text(schema: Mapping[str, Json]) -> str:
    known = _BY_FORMAT.get(str(schema.get("format")))
    minimum = schema.get("minLength")
    return known or "echo".ljust(min(minimum, 1000) if isinstance(minimum, int) else 0, "o")


def _example_number(schema: Mapping[str, Json], *, whole: bool) -> int | float:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    value: int | float = 0
    if isinstance(low, int | float):
        value = low
    elif isinstance(above, int | float):
        value = above + 1
    elif isinstance(high, int | float):
        value = min(0, high)
    elif isinstance(below, int | float):
        value = min(0, below - 1)
    return -int(-value // 1) if whole else value


def _resolve_reference(reference: str, root: Json) -> Json:
    """Return what a local reference points to."""
    place = root
    for name in split_pointer(reference.removeprefix("#")):
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def _list(schema: Mapping[str, Json], key: str) -> list[Json]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _mapping(schema: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    value = schema.get(key)
    return value if isinstance(value, Mapping) else {}

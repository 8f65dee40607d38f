"""Arguments written as text come in, with the schema of their tool; JSON of the types that it names goes out."""

import msgspec
from msgspec import Raw

from dragoman.hub.pointer import split_pointer
from dragoman.hub.request import Json

_MAX_HOPS = 8
_KINDS: dict[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}


def convert_arguments(values: dict[str, str], schema: Json) -> str:
    """A value is the JSON that it spells where the schema wants that type and no text; else it is text."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    known = properties if isinstance(properties, dict) else {}
    typed = {key: _typed(text, _kinds(known.get(key), schema)) for key, text in values.items()}
    return msgspec.json.encode(typed).decode()


def _typed(text: str, kinds: frozenset[str]) -> str | Raw:
    if not kinds or "string" in kinds:
        return text
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return Raw(text.strip().encode()) if _KINDS.get(type(value), frozenset()) & kinds else text


def _kinds(schema: Json, root: Json, hops: int = 0) -> frozenset[str]:
    """The types that a schema names, by itself, by reference or by choice."""
    if not isinstance(schema, dict) or hops > _MAX_HOPS:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    if isinstance(reference := schema.get("$ref"), str):
        return _kinds(_referred(reference, root), root, hops + 1)
    choices = schema.get("anyOf") or schema.get("oneOf")
    found = [_kinds(choice, root, hops + 1) for choice in choices] if isinstance(choices, list) else []
    return frozenset().union(*found) if all(found) else frozenset()


def _referred(reference: str, root: Json) -> Json:
    found = root
    for key in split_pointer(reference.removeprefix("#")):
        found = found.get(key) if isinstance(found, dict) else None
    return found if reference.startswith("#") else None

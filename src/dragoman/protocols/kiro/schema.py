"""A tool's JSON Schema of any client comes in; one that Kiro accepts goes out, with word of what it no longer says."""

from collections.abc import Callable
from urllib.parse import unquote

from dragoman.framing.schematext import Schema, object_root, with_words
from dragoman.hub.pointer import split_pointer

_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})  # their keys are names, not keywords
_LISTED = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_NESTED = frozenset(
    {"items", "not", "if", "then", "else", "contains", "propertyNames", "additionalItems", "contentSchema"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_DATA = frozenset({"const", "default", "examples"})
_LEFT_OUT = frozenset({"$schema", "$id", "$anchor", "$dynamicAnchor", "$comment", "$vocabulary", "strict"})
_DEFINITIONS = frozenset({"$defs", "definitions"})

_MAX_DEPTH = 60
_MAX_NODES = 10_000  # references within references may grow without end


def clean_schema(schema: object, approximate: Callable[[str], None]) -> Schema:
    """The schema of a tool's input, with an object at its root and every reference written out."""
    if not isinstance(schema, dict):
        return object_root(schema, approximate)
    clean = _Cleaner(schema, approximate).node(schema, 0, ())
    if clean.get("type", "object") != "object":
        approximate("the input of a tool is an object")
    properties = clean.get("properties")
    rest = {key: value for key, value in clean.items() if key not in ("type", "properties")}
    root = {"type": "object", "properties": properties if isinstance(properties, dict) else {}, **rest}
    return object_root(root, approximate)


class _Cleaner:
    """One schema's walk; `active` are the references that lead to where it is."""

    __slots__ = ("_approximate", "_left", "_root")

    def __init__(self, root: Schema, approximate: Callable[[str], None]) -> None:
        self._root = root
        self._approximate = approximate
        self._left = _MAX_NODES

    def node(self, schema: object, depth: int, active: tuple[str, ...]) -> Schema:
        self._left -= 1
        if schema is False:
            return {"not": {}}
        if not isinstance(schema, dict):
            return {}
        if depth > _MAX_DEPTH or self._left < 0:
            self._approximate("a schema as large as this is cut")
            return {}
        if isinstance(schema.get("$ref"), str):
            return self._referred(schema, depth, active)
        clean: Schema = {}
        told: Schema = {}
        for key, value in schema.items():
            if key == "additionalProperties":
                self._closing(value, depth, active, told)
            elif key in _LEFT_OUT or key in _DEFINITIONS or key == "$ref":
                self._approximate("a schema is sent with its references written out and without its annotations")
            elif (kept := self._keyword(key, value, depth, active)) is not None:
                clean[key] = kept
        if schema.get("const", ...) is None:
            clean["type"] = "null"
        return with_words(clean, told)

    def _keyword(self, key: str, value: object, depth: int, active: tuple[str, ...]) -> object:
        """What stays of a keyword; None where it goes."""
        if value is None or (value == [] and key not in _DATA):
            if key not in ("properties", "required"):
                self._approximate("Kiro takes no nulls and no empty lists in a schema")
            return None
        if key == "required":
            return self._required(value)
        if key in _NAMED and isinstance(value, dict):
            return {name: self.node(schema, depth + 1, active) for name, schema in value.items()}
        if key in _LISTED | {"items"} and isinstance(value, list):
            return [self.node(schema, depth + 1, active) for schema in value]
        if key in _NESTED:
            return self.node(value, depth + 1, active)
        if key in _NAMED or key in _LISTED:
            self._approximate(f"`{key}` is not what a schema has there")
            return None
        return value  # data, or a keyword without schemas inside it

    def _required(self, value: object) -> list[str] | None:
        if not isinstance(value, list):
            self._approximate("`required` must be a list of names")
            return None
        return [name for name in value if isinstance(name, str)] or None

    def _closing(self, value: object, depth: int, active: tuple[str, ...], told: Schema) -> None:
        if value is None or value is True:
            return
        self._approximate("Kiro takes no `additionalProperties`")
        if value is not False:
            told["additionalProperties"] = self.node(value, depth + 1, active)

    def _referred(self, schema: Schema, depth: int, active: tuple[str, ...]) -> Schema:
        reference = str(schema["$ref"])
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        target = self._find(reference)
        if target is None:
            self._approximate(f"the reference {reference[:100]!r} leads nowhere")
            return self.node(beside, depth, active)
        if reference in active:
            self._approximate("a schema that refers to itself is cut at its second round")
            kind = target.get("type")
            known: Schema = {"type": kind} if isinstance(kind, str) else {}
            return {**known, **self.node(beside, depth, active)}
        found = self.node(target, depth + 1, (*active, reference))
        return {**found, **self.node(beside, depth, active)}

    def _find(self, reference: str) -> Schema | None:
        """What a reference within the schema leads to."""
        if not reference.startswith("#"):
            return None
        found: object = self._root
        for name in split_pointer(unquote(reference[1:])):
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                return None
        if reference != "#" and found is self._root:  # an anchor, which is not looked for
            return None
        return found if isinstance(found, dict) else None

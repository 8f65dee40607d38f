"""Adapt the tools of a request, and the schemas of their inputs, to what an upstream's protocol can express.

`translate/stages/restore_tools.py` uses the returned map to undo every change in the reply.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import ToolLimits
from dragoman.translate.hub.request import (
    Custom,
    Function,
    Part,
    Request,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
    split_pointer,
)

_LEGAL = re.compile(r"[A-Za-z0-9_-]+")
_BAD = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_CHARACTERS = 8
Schema = dict[str, object]

# The keywords of JSON Schema that hold other schemas: under names, in a list, or one by itself.
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions", "defs"})
LISTED = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
SINGLE = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "additionalItems"}
    | {"contentSchema", "unevaluatedItems", "unevaluatedProperties"}
)
DEFINITIONS = frozenset({"$defs", "definitions"})
_ALTERNATIVES = frozenset({"anyOf", "oneOf", "allOf"})


class ToolId(Struct, frozen=True):
    """The client's identity of a tool. A function and a custom tool of the same name are two tools."""

    name: str
    namespace: str | None = None
    custom: bool = False


_Kinds = dict[tuple[str | None, str], bool]  # namespace and name of tools that are sent unchanged -> whether custom


class ToolMap(Struct, frozen=True):
    """The tools that were sent to the upstream under another name or in another form, by that name."""

    tools: dict[str, ToolId] = {}
    wrapped: frozenset[str] = frozenset()  # custom tools that are sent as functions with one string
    kinds: _Kinds = {}

    def __bool__(self) -> bool:
        return bool(self.tools or self.kinds)


_UNCHANGED = ToolMap()


def assign_names(offered: Iterable[ToolId], from_history: Iterable[ToolId], limits: ToolLimits) -> dict[ToolId, str]:
    """Assign a name to every tool. Tools of the request take precedence over tools that only occur in its history."""
    names: dict[ToolId, str] = {}
    taken: dict[str | None, set[str]] = {}
    for tools in (offered, from_history):
        new = [tool for tool in dict.fromkeys(tools) if tool not in names]
        if new:
            _assign(new, names, taken, limits)
    return names


def _assign(
    tools: list[ToolId], names: dict[ToolId, str], taken: dict[str | None, set[str]], limits: ToolLimits
) -> None:
    # Names that can stay are assigned first, so that no alias or flattened name replaces one.
    flat = not limits.namespaces
    for tool in sorted(tools, key=lambda tool: (flat and tool.namespace is not None) or not _fits(tool.name, limits)):
        used = taken.setdefault(None if flat else tool.namespace, set())
        name = f"{tool.namespace}__{tool.name}" if flat and tool.namespace is not None else tool.name
        if name in used or not _fits(name, limits):
            name = _alias(tool, name, limits, used)
        names[tool] = name
        used.add(name)


def _fits(name: str, limits: ToolLimits) -> bool:
    legal = len(name) <= limits.name_max and _is_legal(name)
    return legal and (not limits.letter_first or name[0].isalpha())


@lru_cache(maxsize=4096)
def _is_legal(name: str) -> bool:
    return _LEGAL.fullmatch(name) is not None


def _alias(tool: ToolId, name: str, limits: ToolLimits, taken: set[str]) -> str:
    """Return the beginning of the name, for the model to understand, and a digest, to be unique."""
    prefix = _BAD.sub("_", name)
    if limits.letter_first and not prefix[:1].isalpha():
        prefix = f"t_{prefix}"
    prefix = prefix[: limits.name_max - _DIGEST_CHARACTERS - 1]
    identity = f"{tool.namespace or ''}\0{tool.name}\0{tool.custom}"
    for salt in range(len(taken) + 1):
        digest = hashlib.sha256(f"{identity}\0{salt}".encode(errors="surrogatepass")).hexdigest()
        alias = f"{prefix}_{digest[:_DIGEST_CHARACTERS]}"
        if alias not in taken:
            break
    return alias


INPUT = "input"  # the only property of the function that replaces a custom tool
WRAPPED_PARAMETERS = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
}


def adapt_tools(request: Request, limits: ToolLimits, ledger: Ledger) -> tuple[Request, ToolMap]:
    """Return the adapted request and the map of its tools. A request that needs no change is returned itself."""
    kinds = _find_plain(request, limits)
    if kinds is not None:  # as nearly always
        return request, ToolMap(kinds=kinds) if limits.custom else _UNCHANGED
    offered = [_id_of(tool) for tool in request.tools if type(tool) is Function or type(tool) is Custom]
    names = assign_names(offered, _tools_in_history(request), limits)
    changed = {tool: name for tool, name in names.items() if _differs(tool, name, limits)}
    kinds = _kinds_sent(offered, changed, limits)
    if not changed:
        return request, ToolMap(kinds=kinds)
    _record_losses(request, limits, ledger)
    renaming = _Renaming(names, limits)
    adapted = replace(
        request,
        tools=tuple(map(renaming.tool, request.tools)),
        tool_choice=request.tool_choice and renaming.choice(request.tool_choice),
        turns=tuple(map(renaming.turn, request.turns)),
    )
    wrapped = frozenset(name for tool, name in changed.items() if tool.custom and not limits.custom)
    return adapted, ToolMap({name: tool for tool, name in changed.items()}, wrapped, kinds)


def _find_plain(request: Request, limits: ToolLimits) -> _Kinds | None:
    """Return the kinds of the tools if all are functions that every protocol takes as they are, by their own names."""
    kinds: _Kinds = {}
    for tool in request.tools:
        if type(tool) is Function:
            key = (None, tool.name)
            if tool.namespace is not None or key in kinds or not _fits(tool.name, limits):
                return None
            kinds[key] = False
        elif type(tool) is Custom:
            return None
    for turn in request.turns:
        for part in turn.parts:
            if type(part) is ToolCall and (
                part.custom
                or part.namespace is not None
                or ((None, part.name) not in kinds and not _fits(part.name, limits))
            ):
                return None
    return kinds


def _kinds_sent(offered: list[ToolId], changed: dict[ToolId, str], limits: ToolLimits) -> _Kinds:
    """Return the kinds of the unchanged tools, where the upstream has both kinds and may use the wrong one."""
    if not limits.custom:
        return {}
    return {(tool.namespace, tool.name): tool.custom for tool in offered if tool not in changed}


def _tools_in_history(request: Request) -> list[ToolId]:
    return [
        ToolId(part.name, part.namespace, part.custom)
        for turn in request.turns
        for part in turn.parts
        if type(part) is ToolCall
    ]


def _id_of(tool: Function | Custom) -> ToolId:
    return ToolId(tool.name, tool.namespace, type(tool) is Custom)


def _differs(tool: ToolId, name: str, limits: ToolLimits) -> bool:
    unwrapped = limits.custom or not tool.custom
    in_place = limits.namespaces or tool.namespace is None
    return name != tool.name or not unwrapped or not in_place


def _record_losses(request: Request, limits: ToolLimits, ledger: Ledger) -> None:
    if limits.custom:
        return
    for tool in request.tools:
        if isinstance(tool, Custom) and tool.grammar is not None:
            at = f"{tool.fields_at or tool.at}/format"
            ledger.record_approximated(at, "the upstream cannot enforce the grammar; it is part of the description")
        elif isinstance(tool, Custom):
            ledger.record_approximated(tool.at, "a custom tool is sent as a function with one string")


class _Renaming:
    """Replaces the names of the tools in the parts of one request."""

    def __init__(self, names: dict[ToolId, str], limits: ToolLimits) -> None:
        self._names = names
        self._limits = limits
        self._by_plain_name: dict[str, list[str]] = {}
        for tool, name in names.items():
            self._by_plain_name.setdefault(tool.name, []).append(name)

    def tool(self, tool: Tool) -> Tool:
        if not isinstance(tool, Function | Custom):
            return tool
        name = self._names[_id_of(tool)]
        namespace = self._namespace(tool.namespace)
        if isinstance(tool, Function) or self._limits.custom:
            return (
                tool
                if (name, namespace) == (tool.name, tool.namespace)
                else replace(tool, name=name, namespace=namespace)
            )
        return Function(
            name=name,
            at=tool.at,
            description=_describe(tool),
            parameters=WRAPPED_PARAMETERS,
            namespace=namespace,
            ext=tool.ext,
            fields_at=tool.fields_at,
        )

    def choice(self, choice: ToolChoice) -> ToolChoice:
        allowed = choice.allowed
        if allowed is not None:
            allowed = tuple(new for old in allowed for new in self._find_new_names(old))
        name, namespace = choice.name, choice.namespace
        if name is not None:
            named = self._find(name, namespace, choice.custom)
            name, namespace = (self._names[named], named.namespace) if named else (name, namespace)
        return replace(
            choice,
            name=name,
            namespace=self._namespace(namespace),
            custom=choice.custom and self._limits.custom,
            allowed=allowed,
        )

    def turn(self, turn: Turn) -> Turn:
        parts = tuple(map(self._part, turn.parts))
        same = all(new is old for new, old in zip(parts, turn.parts, strict=True))
        return turn if same else replace(turn, parts=parts)

    def _part(self, part: Part) -> Part:
        if isinstance(part, ToolResult) and part.custom and not self._limits.custom:
            return replace(part, custom=False)
        return self._call(part) if isinstance(part, ToolCall) else part

    def _call(self, call: ToolCall) -> ToolCall:
        name = self._names[ToolId(call.name, call.namespace, call.custom)]
        namespace = self._namespace(call.namespace)
        if call.custom and not self._limits.custom:
            arguments = msgspec.json.encode({INPUT: call.arguments}).decode()
            return replace(call, name=name, namespace=namespace, custom=False, arguments=arguments)
        if (name, namespace) == (call.name, call.namespace):
            return call
        return replace(call, name=name, namespace=namespace)

    def _namespace(self, namespace: str | None) -> str | None:
        return namespace if self._limits.namespaces else None

    def _find(self, name: str, namespace: str | None, custom: bool) -> ToolId | None:
        """Return the tool that a choice names, even if the choice has the wrong kind."""
        exact = ToolId(name, namespace, custom)
        other = ToolId(name, namespace, not custom)
        return exact if exact in self._names else other if other in self._names else None

    def _find_new_names(self, name: str) -> list[str]:
        """Return the new names of all tools of this name: allowed tools are named without namespace or kind."""
        return list(dict.fromkeys(self._by_plain_name.get(name, [name])))


def _describe(tool: Custom) -> str | None:
    if tool.grammar is None:
        return tool.description
    rule = f"The input must match this {tool.grammar.syntax} grammar:\n{tool.grammar.definition}"
    return f"{tool.description}\n\n{rule}" if tool.description else rule


def map_schemas(key: str, value: object, change: Callable[[object], object]) -> object:
    """Return the value of a keyword with `change` applied to each schema directly in it."""
    if key in NAMED and isinstance(value, dict):
        return {name: change(each) for name, each in value.items()}
    if isinstance(value, list) and (key in LISTED or key == "items"):
        return [change(each) for each in value]
    return change(value) if key in SINGLE else value


def find_reference(reference: object, root: object) -> object:
    """Return what a `$ref` within a schema names; None for anchors and other documents, which are not supported."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for name in split_pointer(unquote(reference[1:])):
        if isinstance(found, list) and len(name) < 9 and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return None if found is root and reference != "#" else found


def make_root_object(schema: object, approximate: Callable[[str], None]) -> Schema:
    """Return the schema of a tool's input with a plain object as its root."""
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    root: Schema = schema
    moved: Schema = {}
    if not _ALTERNATIVES.isdisjoint(schema):
        approximate("alternatives at the root of a tool's schema are moved into its description")
        moved = {key: value for key, value in schema.items() if key in _ALTERNATIVES}
        root = {key: value for key, value in schema.items() if key not in moved}
    if root.get("type") != "object":
        root = {"type": "object", **{key: value for key, value in root.items() if key != "type"}}
    return add_to_description(root, moved) if moved else root


def add_to_description(schema: Schema, keywords: Schema) -> Schema:
    """Return the schema with these keywords as text at the end of its description."""
    if not keywords:
        return schema
    words = "; ".join(f"{key}: {msgspec.json.encode(value).decode()}" for key, value in keywords.items())
    description = schema.get("description")
    return {**schema, "description": f"{description}\n({words})" if description else f"({words})"}

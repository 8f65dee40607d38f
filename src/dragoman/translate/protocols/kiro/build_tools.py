"""Build tool specifications, and what the prompt says about tools: long descriptions and the tool choice."""

from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.translate.hub.ext import is_indispensable
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import (
    Custom,
    Function,
    Hosted,
    Pick,
    Request,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    Turn,
)
from dragoman.translate.passes.adapt_tools import (
    DEFINITIONS,
    LISTED,
    NAMED,
    SINGLE,
    Schema,
    add_to_description,
    find_reference,
    make_root_object,
)
from dragoman.translate.passes.adapt_turns import split_leading_instructions
from dragoman.translate.protocols.kiro.wire import InputSchema, ToolEntry, ToolSpecification

_DATA = frozenset({"const", "default", "examples"})
_IGNORED = frozenset({"$schema", "$id", "$anchor", "$dynamicAnchor", "$comment", "$vocabulary", "strict"})
_ANNOTATIONS = _IGNORED | DEFINITIONS | {"$ref"}
_SPECIAL = _ANNOTATIONS | NAMED | LISTED | SINGLE | {"required"}
_MAX_DEPTH = 60
_MAX_NODES = 10_000  # nested references may expand without end
_MUST_CALL = "You must answer by calling at least one of the tools that you are offered."
_ONE_AT_A_TIME = "Call at most one tool in each of your turns."
_NOT_OFFERED = "A tool of an earlier turn. It is not available any more: do not call it."

DOCS_HEADING = "# Tool documentation"


def clean_schema(schema: object, approximate: Callable[[str], None]) -> Schema:
    """Return the schema of a tool's input with an object at its root and all references expanded."""
    if not isinstance(schema, dict):
        return make_root_object(schema, approximate)
    clean = _SchemaCleaner(schema, approximate).clean(schema, 0, ())
    if clean.get("type", "object") != "object":
        approximate("the input of a tool is an object")
    clean.pop("type", None)
    properties = clean.pop("properties", None)
    root = {"type": "object", "properties": properties if isinstance(properties, dict) else {}, **clean}
    return make_root_object(root, approximate)


class _SchemaCleaner(Struct, eq=False):
    """Clean one schema; `active` are the references that lead to the current node."""

    _root: Schema
    _approximate: Callable[[str], None]
    _left: int = _MAX_NODES

    def clean(self, schema: object, depth: int, active: tuple[str, ...]) -> Schema:
        self._left -= 1
        if schema is False:
            return {"not": {}}
        if not isinstance(schema, dict):
            return {}
        if depth > _MAX_DEPTH or self._left < 0:
            self._approximate("a schema as large as this is cut")
            return {}
        if isinstance(schema.get("$ref"), str):
            return self._clean_reference(schema, depth, active)
        clean: Schema = {}
        described: Schema = {}
        for key, value in schema.items():
            if key not in _SPECIAL and value is not None and value != []:
                clean[key] = value  # data, or a keyword without schemas inside it
            elif key == "additionalProperties":
                self._clean_additional(value, depth, active, described)
            elif key in _ANNOTATIONS:
                self._approximate("a schema is sent with its references written out and without its annotations")
            elif (kept := self._clean_keyword(key, value, depth, active)) is not None:
                clean[key] = kept
        if schema.get("const", ...) is None:
            clean["type"] = "null"
        return add_to_description(clean, described) if described else clean

    def _clean_keyword(self, key: str, value: object, depth: int, active: tuple[str, ...]) -> object:
        """Return the cleaned value of a keyword; None to leave it out."""
        if value is None or (value == [] and key not in _DATA):
            if key not in ("properties", "required"):
                self._approximate("Kiro takes no nulls and no empty lists in a schema")
            return None
        if key == "required":
            return self._clean_required(value)
        if key in NAMED and isinstance(value, dict):
            return {name: self.clean(schema, depth + 1, active) for name, schema in value.items()}
        if (key in LISTED or key == "items") and isinstance(value, list):
            return [self.clean(schema, depth + 1, active) for schema in value]
        if key in SINGLE:
            return self.clean(value, depth + 1, active)
        if key in NAMED or key in LISTED:
            self._approximate(f"`{key}` is not what a schema has there")
            return None
        return value

    def _clean_required(self, value: object) -> list[str] | None:
        if not isinstance(value, list):
            self._approximate("`required` must be a list of names")
            return None
        return [name for name in value if isinstance(name, str)] or None

    def _clean_additional(self, value: object, depth: int, active: tuple[str, ...], described: Schema) -> None:
        if value is None or value is True:
            return
        self._approximate("Kiro takes no `additionalProperties`")
        if value is not False:
            described["additionalProperties"] = self.clean(value, depth + 1, active)

    def _clean_reference(self, schema: Schema, depth: int, active: tuple[str, ...]) -> Schema:
        reference = str(schema["$ref"])
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        target = find_reference(reference, self._root)
        if not isinstance(target, dict):
            self._approximate(f"the reference {reference[:100]!r} has no target")
            return self.clean(beside, depth, active)
        if reference in active:
            self._approximate("a schema that refers to itself is cut at its second round")
            kind = target.get("type")
            known: Schema = {"type": kind} if isinstance(kind, str) else {}
            return {**known, **self.clean(beside, depth, active)}
        found = self.clean(target, depth + 1, (*active, reference))
        return {**found, **self.clean(beside, depth, active)}


class OfferedTools(Struct):
    """The tools that a request offers, and sentences about them for the prompt."""

    tools: list[ToolEntry] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)


def forbids_calls(request: Request) -> bool:
    """Return whether the client forbids all calls."""
    return request.tool_choice is not None and request.tool_choice.pick is Pick.NONE


def build_tools(request: Request, ledger: Ledger) -> OfferedTools:
    if forbids_calls(request):
        for tool in request.tools:
            ledger.record_dropped(tool.at, "tool_choice forbids calls, so no tool is offered")
        return OfferedTools()
    choice = request.tool_choice
    functions = _drop_duplicates(_select_functions(request.tools, choice, ledger), ledger)
    if choice is not None and choice.allowed is not None:
        functions = _select_allowed(functions, choice, choice.allowed, ledger)
    tools = [_build_specification(tool, ledger) for tool in functions]
    offered = OfferedTools(tools, _build_sentences(request, functions, ledger))
    offered.tools += _build_stubs(request, functions, ledger)
    return offered


def _select_functions(tools: Sequence[Tool], choice: ToolChoice | None, ledger: Ledger) -> list[Function]:
    """Return the functions; raise BadRequest for a vendor-run tool that the answer depends on, else drop it."""
    functions = [tool for tool in tools if type(tool) is Function]
    for tool in tools if len(functions) < len(tools) else ():
        match tool:
            case Hosted(kind=kind, at=at):
                if is_indispensable(tool, choice, functions):
                    raise BadRequest(at, f"Kiro has no tool like {kind!r}. Remove it or choose another model.")
                ledger.record_dropped(at, f"Kiro has no tool like {kind!r}")
            case Custom(at=at):
                raise BadRequest(at, "Kiro has no custom tools. Use a function.")
    return functions


def _drop_duplicates(functions: list[Function], ledger: Ledger) -> list[Function]:
    kept: dict[str, Function] = {}
    for tool in functions:
        if kept.setdefault(tool.name, tool) is not tool:
            ledger.record_dropped(tool.at, "another tool of this name is offered already")
    return list(kept.values())


def _select_allowed(
    functions: list[Function], choice: ToolChoice, names: tuple[str, ...], ledger: Ledger
) -> list[Function]:
    ledger.record_approximated(choice.at, "only the allowed tools are offered")
    for tool in functions:
        if tool.name not in names:
            ledger.record_dropped(tool.at, "only the allowed tools are offered")
    return [tool for tool in functions if tool.name in names]


def _build_sentences(request: Request, functions: Sequence[Function], ledger: Ledger) -> list[str]:
    sentences: list[str] = []
    choice = request.tool_choice
    if choice is not None and choice.pick in (Pick.REQUIRED, Pick.NAMED):
        if not functions:
            raise BadRequest(
                choice.at, "tool_choice requires a tool call, but no tool is offered. Add a tool or remove tool_choice."
            )
        if choice.pick is Pick.NAMED and choice.name not in {tool.name for tool in functions}:
            raise BadRequest(
                choice.at, f"tool_choice names {choice.name or choice.hosted!r}, which is not among the tools."
            )
        ledger.record_approximated(choice.at, "Kiro cannot be forced to call a tool; the prompt asks for it")
        named = choice.pick is Pick.NAMED
        sentences.append(f"You must answer by calling the tool {choice.name}." if named else _MUST_CALL)
    if request.parallel is False:
        ledger.record_approximated(request.pointer("parallel"), "the prompt asks for one call at a time")
        if functions:
            sentences.append(_ONE_AT_A_TIME)
    return sentences


def _build_specification(tool: Function, ledger: Ledger) -> ToolEntry:
    schema = clean_schema(tool.parameters, lambda why: ledger.record_approximated(tool.pointer("parameters"), why))
    description = tool.description
    if description is None or not description.strip():
        ledger.record_invented(tool.pointer("description"), "Kiro requires a description of every tool")
        description = f"The tool {tool.name}."
    if tool.strict:
        ledger.record_dropped(tool.pointer("strict"), "Kiro has no strict mode")
    if tool.deferred:
        ledger.record_approximated(tool.pointer("defer_loading"), "the tool is offered at once")
    return ToolEntry(ToolSpecification(tool.name, description, InputSchema(schema)))


def _build_stubs(request: Request, functions: Sequence[Function], ledger: Ledger) -> list[ToolEntry]:
    """Return stubs for tools of the history that are not offered, because Kiro rejects such a history."""
    calls = [part for turn in request.turns for part in turn.parts if type(part) is ToolCall]
    if not calls:
        return []
    stubs: dict[str, ToolEntry] = {}
    offered = {tool.name for tool in functions}
    for call in calls:
        if call.name in offered or call.name in stubs:
            continue
        ledger.record_invented(request.pointer("tools"), "tools in the history must be offered; marked as unavailable")
        schema: dict[str, object] = {"type": "object", "properties": {}}
        stubs[call.name] = ToolEntry(ToolSpecification(call.name, _NOT_OFFERED, InputSchema(schema)))
    return list(stubs.values())


def move_tool_docs(request: Request, limit: int, ledger: Ledger) -> Request:
    """Return the request with descriptions of more than `limit` characters as sections, and references in the tools."""
    long = [tool for tool in request.tools if isinstance(tool, Function) and _is_long(tool, limit)]
    if not long:
        return request
    for tool in long:
        at = tool.pointer("description")
        ledger.record_approximated(at, f"a description of more than {limit} characters is moved into the instructions")
    sections = [f"## Tool: {tool.name}\n\n{tool.description}" for tool in long]
    docs = Turn(Role.SYSTEM, (Text("\n\n".join([DOCS_HEADING, *sections])),))
    leading, turns = split_leading_instructions(request.turns)
    tools = tuple(_refer_to_section(tool) if _is_long(tool, limit) else tool for tool in request.tools)
    return replace(request, turns=(*leading, docs, *turns), tools=tools)


def _is_long(tool: Tool, limit: int) -> bool:
    return isinstance(tool, Function) and tool.description is not None and len(tool.description) > limit


def _refer_to_section(tool: Tool) -> Tool:
    assert isinstance(tool, Function)
    pointer = f"[Full documentation in system prompt under '## Tool: {tool.name}']"
    return replace(tool, description=pointer)

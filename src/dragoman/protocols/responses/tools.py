"""Tools and tool choice: a Responses client's tools come in and hub tools go out, and the other way round."""

from collections.abc import Iterable, Iterator
from functools import cached_property

from dragoman.framing.fields import Fields
from dragoman.hub.ext import is_indispensable, note_unread_fields, restore
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.request import (
    Custom,
    Ext,
    Function,
    Grammar,
    Hosted,
    Json,
    Pick,
    Request,
    Tool,
    ToolChoice,
)
from dragoman.protocols.responses.content import ext_of
from dragoman.protocols.responses.wire import HOSTED_TOOLS, NAME, OTHER_TOOLS

Wire = dict[str, Json]

_NO_PARAMETERS: Wire = {"type": "object", "properties": {}}
_PICKS = {"auto": Pick.AUTO, "none": Pick.NONE, "required": Pick.REQUIRED}
_TOOL_TYPES = {"code_execution": "code_interpreter"}  # the hub's word -> ours, where they differ
_UNNAMEABLE = frozenset(("web_search", "tool_search"))  # `tool_choice` has no word for them
_HOSTED_DEFAULTS: Wire = {"container": {"type": "auto"}, "require_approval": "never"}
_CARRIED = frozenset(HOSTED_TOOLS.values()) | {"mcp"}  # hosted tools that other protocols know too
_WRITTEN = _CARRIED | {"tool_search"}  # other protocols' hosted tools that we have the like of

# Reading


def read_tools(tools: Iterable[Fields], ext: Ext) -> Iterator[Tool]:
    """The tools, namespaces opened; what is said of no single tool goes into the request's own `ext`."""
    for tool in tools:
        match tool.need_text("type"):
            case "function":
                yield _read_function(tool, None)
            case "custom":
                yield _read_custom(tool, None)
            case "namespace":
                yield from _read_namespace(tool, ext)
            case type_:
                yield _read_hosted(type_, tool)


def _read_namespace(tool: Fields, ext: Ext) -> Iterator[Tool]:
    name = tool.need_text("name")
    for inner in tool.objects("tools") or []:
        match inner.text("type"):
            case "custom":
                yield _read_custom(inner, name)
            case _:
                yield _read_function(inner, name)
    for key, value in tool.rest().items():
        if value != "":
            ext[tool.pointer(key)[1:]] = value


def _read_function(tool: Fields, namespace: str | None) -> Function:
    parameters = tool.obj("parameters")
    return Function(
        tool.need_text("name"),
        tool.at,
        description=tool.text("description"),
        parameters=tool.raw("parameters") if parameters else None,
        strict=tool.flag("strict"),
        namespace=namespace,
        deferred=tool.flag("defer_loading", False),
        ext=ext_of(tool),
    )


def _read_custom(tool: Fields, namespace: str | None) -> Custom:
    format_ = tool.obj("format")
    grammar: Grammar | None = None
    if format_ is not None and format_.text("type") == "grammar":
        grammar = Grammar(format_.need_text("syntax"), format_.need_text("definition"))
    return Custom(
        tool.need_text("name"),
        tool.at,
        description=tool.text("description"),
        grammar=grammar,
        namespace=namespace,
        ext=ext_of(tool, format=format_),
    )


def _read_hosted(type_: str, tool: Fields) -> Hosted:
    raw = {"type": type_, **tool.rest()}
    kind = HOSTED_TOOLS.get(type_, type_)
    if kind not in _CARRIED:  # other protocols refuse or drop it whole
        return Hosted(kind, raw, tool.at, known=type_ in OTHER_TOOLS)
    filters = tool.obj("filters")
    size = tool.text("search_context_size")
    return Hosted(
        kind,
        raw,
        tool.at,
        allowed_domains=_strings(filters, "allowed_domains") if filters else (),
        location=tool.raw("user_location"),
        context_size=None if size == "medium" else size,
        server_url=tool.text("server_url"),
        server_name=tool.text("server_label"),
        authorization=tool.text("authorization"),
        allowed_tools=_allowed_tools(tool),
        ext={key: value for key, value in ext_of(tool, filters=filters).items() if _HOSTED_DEFAULTS.get(key) != value},
    )


def _strings(fields: Fields, key: str) -> tuple[str, ...]:
    values = fields.items(key) or []
    if not all(isinstance(value, str) for value in values):
        raise fields.bad(key, "must be an array of strings")
    return tuple(str(value) for value in values)


def _allowed_tools(tool: Fields) -> tuple[str, ...] | None:
    """The tools of an MCP server that may be called: names, or a filter that holds nothing but names."""
    if isinstance(tool.raw("allowed_tools"), list):
        return _strings(tool, "allowed_tools")
    chosen = tool.obj("allowed_tools")
    return _strings(chosen, "tool_names") if chosen is not None and chosen.has("tool_names") else None


def read_choice(fields: Fields) -> ToolChoice | None:
    """`tool_choice`; None for auto, which is the default."""
    at = fields.pointer("tool_choice")
    value = fields.raw("tool_choice")
    if value is None or value == "auto":
        return None
    if isinstance(value, str):
        if value not in _PICKS:
            raise fields.bad("tool_choice", "must be auto, none, required or an object")
        return ToolChoice(_PICKS[value], at)
    choice = Fields(value, at) if isinstance(value, dict) else None
    if choice is None:
        raise fields.bad("tool_choice", "must be a string or an object")
    match choice.need_text("type"):
        case "function" | "custom" as type_:
            name, namespace = choice.need_text("name"), choice.text("namespace")
            return ToolChoice(Pick.NAMED, at, name, namespace, custom=type_ == "custom")
        case "allowed_tools":
            pick = Pick.REQUIRED if choice.one_of("mode", ("auto", "required")) == "required" else Pick.AUTO
            return ToolChoice(pick, at, allowed=tuple(map(_allowed, choice.need_objects("tools"))))
        case type_:
            return ToolChoice(Pick.NAMED, at, choice.text("name"), hosted=HOSTED_TOOLS.get(type_, type_))


def _allowed(tool: Fields) -> str:
    type_ = tool.text("type") or "function"
    return tool.text("name") or tool.text("server_label") or HOSTED_TOOLS.get(type_, type_)


# Writing


class ToolWriter:
    """Writes the tools of one request, and tells the ledger what they lose."""

    def __init__(self, request: Request, ledger: Ledger) -> None:
        self._request = request
        self._ledger = ledger
        self._own = request.protocol == NAME
        self._searchable = any(isinstance(tool, Hosted) and tool.kind == "tool_search" for tool in request.tools)

    def tools(self) -> list[Json]:
        written: list[Json] = []
        namespaces: dict[str, list[Json]] = {}
        for tool in self._request.tools:
            wire = self._tool(tool)
            namespace = None if isinstance(tool, Hosted) else tool.namespace
            if wire is None:
                continue
            if namespace is None:
                written.append(wire)
                continue
            if namespace not in namespaces:
                namespaces[namespace] = []
                written.append(self._namespace(namespace, tool, namespaces[namespace]))
            namespaces[namespace].append(wire)
        return written

    def choice(self) -> Json:
        choice = self._request.tool_choice
        if choice is None:
            return None
        if not self._request.tools:
            if choice.pick in (Pick.REQUIRED, Pick.NAMED):
                raise BadRequest(choice.at, "a tool call is demanded but no tool is offered")
            return None
        if choice.allowed is not None:
            tools = [self._named(name) for name in choice.allowed]
            mode = "required" if choice.pick is Pick.REQUIRED else "auto"
            return {"type": "allowed_tools", "mode": mode, "tools": tools}
        if choice.pick is not Pick.NAMED:
            return choice.pick.value
        if self._own and choice.hosted is not None:
            return self._request.raw.get("tool_choice")
        if choice.hosted is not None:
            hosted: Wire = {"type": _TOOL_TYPES.get(choice.hosted, choice.hosted)}
            only = {"type": "allowed_tools", "mode": "required", "tools": [hosted]}
            return only if choice.hosted in _UNNAMEABLE else hosted
        named: Wire = {"type": "custom" if choice.custom else "function", "name": choice.name}
        return named if choice.namespace is None else {**named, "namespace": choice.namespace}

    def _named(self, name: str) -> Wire:
        return self._unlike_functions.get(name) or {"type": "function", "name": name}

    @cached_property
    def _unlike_functions(self) -> dict[str, Wire]:
        """How an allowed tool that is no function is named."""
        named: dict[str, Wire] = {}
        for tool in self._request.tools:
            match tool:
                case Custom(name=name):
                    named.setdefault(name, {"type": "custom", "name": name})
                case Hosted(server_name=str(label)):
                    named.setdefault(label, {"type": "mcp", "server_label": label})
                case Hosted(kind=kind):
                    named.setdefault(kind, {"type": _TOOL_TYPES.get(kind, kind)})
        return named

    def _namespace(self, name: str, first: Tool, tools: list[Json]) -> Wire:
        above = first.at.rpartition("/tools/")[0][1:]
        description = self._request.ext.get(f"{above}/description", "") if self._own else ""
        return {"type": "namespace", "name": name, "description": description, "tools": tools}

    def _tool(self, tool: Tool) -> Wire | None:
        match tool:
            case Function():
                return self._function(tool)
            case Custom():
                return self._custom(tool)
            case Hosted():
                return self._hosted(tool)

    def _function(self, tool: Function) -> Wire:
        wire: Wire = {"type": "function", "name": tool.name}
        if tool.description is not None:
            wire["description"] = tool.description
        wire["parameters"] = _NO_PARAMETERS if tool.parameters is None else tool.parameters
        # Left out, it means true here and false everywhere else, and many schemas would be rejected.
        if tool.strict is not None or not self._own:
            wire["strict"] = bool(tool.strict)
        if tool.deferred and (self._own or self._searchable):
            wire["defer_loading"] = True
        elif tool.deferred:
            self._ledger.approximated(f"{tool.at}/defer_loading", "without a tool search every tool is offered at once")
        if tool.cache is not None:
            self._ledger.dropped(tool.cache.at, "responses has cache breakpoints on input parts only")
        if self._own:
            restore(wire, tool.ext)
        return wire

    def _custom(self, tool: Custom) -> Wire:
        wire: Wire = {"type": "custom", "name": tool.name}
        if tool.description is not None:
            wire["description"] = tool.description
        if tool.grammar is not None:
            grammar = tool.grammar
            wire["format"] = {"type": "grammar", "syntax": grammar.syntax, "definition": grammar.definition}
        if self._own:
            restore(wire, tool.ext)
        return wire

    def _hosted(self, tool: Hosted) -> Wire | None:
        if self._own:
            return tool.raw if isinstance(tool.raw, dict) else None
        match tool.kind:
            case "web_search":
                return self._web_search(tool)
            case "code_execution":
                self._carried(tool, "code_interpreter runs in a container of the vendor's own")
                return {"type": "code_interpreter", "container": {"type": "auto"}}
            case "mcp" if tool.server_url is not None:
                return self._mcp(tool, tool.server_url)
            case "mcp_toolset" if tool.allowed_tools is not None:
                return None  # its server says it
            case "tool_search":
                self._carried(tool, "the vendor searches tools in its own way")
                return {"type": "tool_search"}
        self._dropped(tool)
        return None

    def _carried(self, tool: Hosted, why: str) -> None:
        self._ledger.approximated(tool.at, why)
        note_unread_fields(tool, NAME, self._ledger)

    def _dropped(self, tool: Hosted) -> None:
        others = (other for other in self._request.tools if not isinstance(other, Hosted) or other.kind in _WRITTEN)
        if is_indispensable(tool, self._request.tool_choice, others):
            raise BadRequest(tool.at, f"a Responses upstream has no tool like {tool.kind!r}")
        self._ledger.dropped(tool.at, f"responses has no tool like {tool.kind!r}")

    def _web_search(self, tool: Hosted) -> Wire:
        wire: Wire = {"type": "web_search"}
        if tool.allowed_domains:
            wire["filters"] = {"allowed_domains": list(tool.allowed_domains)}
        if tool.location is not None:
            wire["user_location"] = tool.location
        if tool.blocked_domains:
            self._ledger.dropped(f"{tool.at}/blocked_domains", "responses cannot exclude domains")
        if tool.max_uses is not None:
            self._ledger.dropped(f"{tool.at}/max_uses", "responses cannot limit the uses of one tool")
        if tool.context_size is not None:
            wire["search_context_size"] = tool.context_size
        self._carried(tool, "the vendor's own web search")
        return wire

    def _mcp(self, tool: Hosted, url: str) -> Wire:
        wire: Wire = {"type": "mcp", "server_label": tool.server_name or "server", "server_url": url}
        if tool.authorization is not None:
            wire["authorization"] = tool.authorization
        wire["require_approval"] = "never"
        if tool.allowed_tools is not None:
            wire["allowed_tools"] = list(tool.allowed_tools)
        self._carried(tool, "the vendor connects to the server in its own way")
        return wire

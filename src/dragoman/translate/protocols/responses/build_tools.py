"""Build the tools and the tool choice of a Responses request."""

from functools import cached_property

from dragoman.translate.hub.ext import is_indispensable, record_unread_fields, restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import (
    Custom,
    Function,
    Hosted,
    Json,
    Pick,
    Request,
    Tool,
)
from dragoman.translate.protocols.responses.wire import CARRIED_KINDS, NAME, Wire

_NO_PARAMETERS: Wire = {"type": "object", "properties": {}}
_TOOL_TYPES = {"code_execution": "code_interpreter"}  # the hub's kind -> the type in Responses, where they differ
_UNNAMEABLE = frozenset(("web_search", "tool_search"))  # `tool_choice` cannot name them
_EQUIVALENT_KINDS = CARRIED_KINDS | {"tool_search"}  # other protocols' hosted tools with an equivalent


class ToolBuilder:
    """Build the tools and the tool choice of one request."""

    def __init__(self, request: Request, ledger: Ledger) -> None:
        self._request = request
        self._ledger = ledger
        self._same_protocol = request.protocol == NAME
        self._has_tool_search = any(type(tool) is Hosted and tool.kind == "tool_search" for tool in request.tools)

    def tools(self) -> list[Json]:
        written: list[Json] = []
        namespaces: dict[str, list[Json]] = {}
        for tool in self._request.tools:
            wire = self._build_tool(tool)
            namespace = None if isinstance(tool, Hosted) else tool.namespace
            if wire is None:
                continue
            if namespace is None:
                written.append(wire)
                continue
            if namespace not in namespaces:
                namespaces[namespace] = []
                written.append(self._build_namespace(namespace, tool, namespaces[namespace]))
            namespaces[namespace].append(wire)
        return written

    def choice(self) -> Json:
        choice = self._request.tool_choice
        if choice is None:
            return None
        if not self._request.tools:
            if choice.pick in (Pick.REQUIRED, Pick.NAMED):
                raise BadRequest(
                    choice.at, "tool_choice requires a tool call, but tools is empty. Add a tool or remove tool_choice."
                )
            return None
        if choice.allowed is not None:
            tools = [(self._other_tools.get(name) or {"type": "function", "name": name}) for name in choice.allowed]
            mode = "required" if choice.pick is Pick.REQUIRED else "auto"
            return {"type": "allowed_tools", "mode": mode, "tools": tools}
        if choice.pick is not Pick.NAMED:
            return choice.pick.value
        if self._same_protocol and choice.hosted is not None:
            return self._request.raw.get("tool_choice")
        if choice.hosted is not None:
            hosted: Wire = {"type": _TOOL_TYPES.get(choice.hosted, choice.hosted)}
            only = {"type": "allowed_tools", "mode": "required", "tools": [hosted]}
            return only if choice.hosted in _UNNAMEABLE else hosted
        named: Wire = {"type": "custom" if choice.custom else "function", "name": choice.name}
        return named if choice.namespace is None else {**named, "namespace": choice.namespace}

    @cached_property
    def _other_tools(self) -> dict[str, Wire]:
        """Return how to name allowed tools that are not functions."""
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

    def _build_namespace(self, name: str, first: Tool, tools: list[Json]) -> Wire:
        above = first.at.rpartition("/tools/")[0][1:]
        description = self._request.ext.get(f"{above}/description", "") if self._same_protocol else ""
        return {"type": "namespace", "name": name, "description": description, "tools": tools}

    def _build_tool(self, tool: Tool) -> Wire | None:
        match tool:
            case Function():
                return self._build_function(tool)
            case Custom():
                return self._build_custom(tool)
            case Hosted():
                return self._build_hosted(tool)

    def _build_function(self, tool: Function) -> Wire:
        wire: Wire = {"type": "function", "name": tool.name}
        if tool.description is not None:
            wire["description"] = tool.description
        wire["parameters"] = _NO_PARAMETERS if tool.parameters is None else tool.parameters
        # The default is true here and false elsewhere, and many schemas are not strict.
        if tool.strict is not None or not self._same_protocol:
            wire["strict"] = bool(tool.strict)
        if tool.deferred and (self._same_protocol or self._has_tool_search):
            wire["defer_loading"] = True
        elif tool.deferred:
            self._ledger.record_approximated(
                f"{tool.at}/defer_loading", "without tool search the tool is offered at once"
            )
        if self._same_protocol:
            restore(wire, tool.ext)
        return wire

    def _build_custom(self, tool: Custom) -> Wire:
        wire: Wire = {"type": "custom", "name": tool.name}
        if tool.description is not None:
            wire["description"] = tool.description
        if tool.grammar is not None:
            grammar = tool.grammar
            wire["format"] = {"type": "grammar", "syntax": grammar.syntax, "definition": grammar.definition}
        if self._same_protocol:
            restore(wire, tool.ext)
        return wire

    def _build_hosted(self, tool: Hosted) -> Wire | None:
        if self._same_protocol:
            return tool.raw if isinstance(tool.raw, dict) else None
        match tool.kind:
            case "web_search":
                return self._build_web_search(tool)
            case "code_execution":
                self._record_carried(tool, "code_interpreter runs in the vendor's container")
                return {"type": "code_interpreter", "container": {"type": "auto"}}
            case "mcp" if tool.server_url is not None:
                return self._build_mcp(tool, tool.server_url)
            case "mcp_toolset" if tool.allowed_tools is not None:
                return None  # the entry of its server lists the same tools
            case "tool_search":
                self._record_carried(tool, "the vendor's tool search works differently")
                return {"type": "tool_search"}
        tools = self._request.tools
        others = (other for other in tools if not isinstance(other, Hosted) or other.kind in _EQUIVALENT_KINDS)
        if is_indispensable(tool, self._request.tool_choice, others):
            raise BadRequest(
                tool.at, f"A Responses upstream has no tool like {tool.kind!r}. Remove it or choose another model."
            )
        self._ledger.record_dropped(tool.at, f"Responses has no tool like {tool.kind!r}")
        return None

    def _record_carried(self, tool: Hosted, why: str) -> None:
        self._ledger.record_approximated(tool.at, why)
        record_unread_fields(tool, NAME, self._ledger)

    def _build_web_search(self, tool: Hosted) -> Wire:
        wire: Wire = {"type": "web_search"}
        if tool.allowed_domains:
            wire["filters"] = {"allowed_domains": list(tool.allowed_domains)}
        if tool.location is not None:
            wire["user_location"] = tool.location
        if tool.blocked_domains:
            self._ledger.record_dropped(tool.blocked_pointer, "Responses cannot exclude domains")
        if tool.max_uses is not None:
            self._ledger.record_dropped(f"{tool.at}/max_uses", "Responses cannot limit the uses of one tool")
        if tool.context_size is not None:
            wire["search_context_size"] = tool.context_size
        self._record_carried(tool, "the vendor's web search works differently")
        return wire

    def _build_mcp(self, tool: Hosted, url: str) -> Wire:
        wire: Wire = {"type": "mcp", "server_label": tool.server_name or "server", "server_url": url}
        if tool.authorization is not None:
            wire["authorization"] = tool.authorization
        wire["require_approval"] = "never"
        if tool.allowed_tools is not None:
            wire["allowed_tools"] = list(tool.allowed_tools)
        self._record_carried(tool, "the vendor connects to the server differently")
        return wire

"""Build `tools`, `mcp_servers` and `tool_choice` of a Messages request."""

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from dragoman.framing.json_schema import make_root_object
from dragoman.hub.ext import is_indispensable, note_unread_fields, restore
from dragoman.hub.failure import BadRequest
from dragoman.hub.profile import Profile
from dragoman.hub.request import Custom, Function, Hosted, Pick, Request, Tool, ToolChoice
from dragoman.protocols.messages.build_content import Writer
from dragoman.protocols.messages.parse_tools import name_of
from dragoman.protocols.messages.wire import NAME, Wire

_CARRIED_KINDS = frozenset({"web_search", "code_execution", "mcp"})
_NATIVE: dict[str, Wire] = {
    "web_search": {"type": "web_search_20250305", "name": "web_search"},
    "code_execution": {"type": "code_execution_20250825", "name": "code_execution"},
    "tool_search": {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
}
_CHOICES = {Pick.AUTO: "auto", Pick.NONE: "none", Pick.REQUIRED: "any", Pick.NAMED: "tool"}


def is_carried(tool: Hosted, deferred: bool) -> bool:
    """Whether Anthropic has an equal; a search for tools needs deferred tools, and must not be the client's to run."""
    if tool.kind != "tool_search":
        return tool.kind in _CARRIED_KINDS
    return deferred and not (isinstance(tool.raw, dict) and tool.raw.get("execution") == "client")


def is_named(tool: Tool, choice: ToolChoice) -> bool:
    """Whether a named choice means this tool."""
    if isinstance(tool, Hosted):
        return tool.kind == choice.hosted or (choice.name is not None and name_of(tool) == choice.name)
    return tool.name == choice.name


def write_hosted(tool: Hosted, request: Request, writer: Writer) -> Wire:
    """A tool that is listed among the tools."""
    if writer.own:
        return dict(tool.raw) if isinstance(tool.raw, dict) else {"type": tool.kind}
    writer.ledger.note_approximated(tool.at, f"{tool.kind!r} is run by this upstream in its own way")
    note_unread_fields(tool, NAME, writer.ledger)
    wire = dict(_NATIVE[tool.kind])
    match tool.kind:
        case "web_search":
            if tool.context_size is not None:
                writer.ledger.note_dropped(f"{tool.at}/search_context_size", "how much is read cannot be chosen")
            _set_search_limits(wire, tool, request)
        case "code_execution":
            _refuse_container(tool)
    return wire


def write_server(tool: Hosted, writer: Writer) -> Wire:
    """An MCP server."""
    raw = tool.raw if isinstance(tool.raw, dict) else {}
    if writer.own:
        return dict(raw)
    if tool.server_url is None:
        raise BadRequest(tool.at, "only MCP servers with an address can be reached from this upstream")
    if raw.get("require_approval", "always") != "never":
        raise BadRequest(f"{tool.at}/require_approval", 'this upstream asks for no approvals; set it to "never"')
    writer.ledger.note_approximated(tool.at, "the MCP server is called by this upstream in its own way")
    note_unread_fields(tool, NAME, writer.ledger)
    wire: Wire = {"type": "url", "url": tool.server_url, "name": tool.server_name or "server"}
    if tool.authorization is not None:
        wire["authorization_token"] = tool.authorization
    return wire


def _set_search_limits(wire: Wire, tool: Hosted, request: Request) -> None:
    if tool.allowed_domains:
        wire["allowed_domains"] = list(tool.allowed_domains)
    elif tool.blocked_domains:
        wire["blocked_domains"] = list(tool.blocked_domains)
    most = tool.max_uses if tool.max_uses is not None else request.max_tool_calls
    if most is not None:
        wire["max_uses"] = most
    if tool.location is not None:
        wire["user_location"] = tool.location


def _refuse_container(tool: Hosted) -> None:
    container = tool.raw.get("container") if isinstance(tool.raw, dict) else None
    files = container.get("file_ids") if isinstance(container, dict) else None
    if isinstance(container, str) or files:
        raise BadRequest(f"{tool.at}/container", "containers and files of another vendor cannot be used here")


class Offer(Struct):
    """What a request offers the model to call."""

    tools: list[Wire] = field(default_factory=list)
    servers: list[Wire] = field(default_factory=list)
    choice: Wire | None = None


def write_tools(request: Request, profile: Profile, thinking: bool, writer: Writer) -> Offer:
    choice = request.tool_choice
    tools: Sequence[Tool] = request.tools if writer.own else _carried(request.tools, choice, writer)
    if choice is not None:
        tools, choice = _fitted(tools, choice, profile, thinking, writer)
    offer = Offer()
    searchable = any(isinstance(tool, Hosted) and tool.kind == "tool_search" for tool in tools)
    for tool in tools:
        match tool:
            case Function():
                offer.tools.append(_function(tool, searchable or writer.own, request, writer))
            case Hosted(kind="mcp"):
                offer.servers.append(write_server(tool, writer))
                offer.tools += _toolsets(tool, tools, writer)
            case Hosted():
                offer.tools.append(write_hosted(tool, request, writer))
            case Custom():
                raise BadRequest(tool.at, "this upstream has no freeform tools")
    _tell_unused_limit(request, tools, writer)
    offer.choice = _choice(choice, request, bool(offer.tools))
    return offer


def _carried(tools: Sequence[Tool], choice: ToolChoice | None, writer: Writer) -> tuple[Tool, ...]:
    """Without the hosted tools that this protocol has no equal of; the only tool, or a forced one, is a refusal."""
    deferred = any(isinstance(tool, Function) and tool.deferred for tool in tools)
    kept = tuple(tool for tool in tools if not isinstance(tool, Hosted) or is_carried(tool, deferred))
    for tool in tools:
        if not isinstance(tool, Hosted) or tool in kept:
            continue
        if is_indispensable(tool, choice, kept):
            raise BadRequest(tool.at, f"this upstream has no tool like {tool.kind!r}")
        writer.ledger.note_dropped(tool.at, f"this upstream has no tool like {tool.kind!r}")
    return kept


def _fitted(
    tools: Sequence[Tool], choice: ToolChoice, profile: Profile, thinking: bool, writer: Writer
) -> tuple[Sequence[Tool], ToolChoice]:
    """Tools and choice as the model allows them: a choice it cannot be forced to becomes a shorter list."""
    if choice.allowed is not None:
        allowed = frozenset(choice.allowed)
        writer.ledger.note_approximated(choice.at, "only the allowed tools are offered")
        tools = _kept(tools, lambda tool: _name(tool) in allowed, writer)
    if choice.pick not in (Pick.REQUIRED, Pick.NAMED):
        return tools, choice
    if not writer.own:  # whose own clients may name a tool that is not listed, one of an MCP server's
        _refuse_unoffered(tools, choice)
    if profile.forced_choice and (profile.forced_choice_while_thinking or not thinking):
        return tools, choice
    if choice.pick is Pick.NAMED:
        tools = _kept(tools, lambda tool: is_named(tool, choice), writer)
    writer.ledger.note_approximated(choice.at, "this model cannot be forced to call a tool; it is only offered")
    return tools, ToolChoice(Pick.AUTO, choice.at)


def _kept(tools: Sequence[Tool], is_chosen: Callable[[Tool], bool], writer: Writer) -> Sequence[Tool]:
    for tool in tools:
        if not is_chosen(tool):
            writer.ledger.note_dropped(tool.at, "the choice of tools leaves it out")
    return [tool for tool in tools if is_chosen(tool)]


def _refuse_unoffered(tools: Sequence[Tool], choice: ToolChoice) -> None:
    if not tools:
        raise BadRequest(choice.at, "a tool must be called, but none is offered")
    if choice.pick is Pick.NAMED and not any(is_named(tool, choice) for tool in tools):
        raise BadRequest(choice.at, f"the tool {choice.name or choice.hosted!r} is not offered")


def _name(tool: Tool) -> str:
    return (tool.server_name or tool.kind) if isinstance(tool, Hosted) else tool.name


def _function(tool: Function, may_defer: bool, request: Request, writer: Writer) -> Wire:
    wire: Wire = {"name": tool.name}
    if tool.description is not None:
        wire["description"] = tool.description
    if writer.own and tool.parameters is not None:
        wire["input_schema"] = tool.parameters
    else:
        at = tool.pointer("parameters")
        wire["input_schema"] = make_root_object(tool.parameters, lambda why: writer.ledger.note_approximated(at, why))
    if tool.strict:
        wire["strict"] = True
    if tool.deferred and may_defer:
        wire["defer_loading"] = True
    elif tool.deferred:
        writer.ledger.note_approximated(f"{tool.at}/defer_loading", "without a search for tools it is offered at once")
    writer.mark(wire, tool.cache)
    if writer.own:
        restore(wire, tool.ext)
    return wire


def _toolsets(server: Hosted, tools: Sequence[Tool], writer: Writer) -> list[Wire]:
    """The toolset that switches a server on, unless the client wrote it itself."""
    raw = server.raw if isinstance(server.raw, dict) else {}
    allowed = server.allowed_tools
    written = any(
        isinstance(tool, Hosted) and tool.kind == "mcp_toolset" and tool.server_name == server.server_name
        for tool in tools
    )
    if writer.own and (written or "tool_configuration" in raw):
        return []
    toolset: Wire = {"type": "mcp_toolset", "mcp_server_name": _server_name(server)}
    if allowed is not None:
        toolset["default_config"] = {"enabled": False}
        toolset["configs"] = {name: {"enabled": True} for name in allowed}
    return [toolset]


def _server_name(server: Hosted) -> str:
    return server.server_name or "server"


def _tell_unused_limit(request: Request, tools: Sequence[Tool], writer: Writer) -> None:
    if request.max_tool_calls is None:
        return
    at = request.pointer("max_tool_calls")
    if any(isinstance(tool, Hosted) and tool.kind == "web_search" for tool in tools):
        writer.ledger.note_approximated(at, "the limit holds for each search tool on its own")
    else:
        writer.ledger.note_dropped(at, "only searches can be limited")


def _choice(choice: ToolChoice | None, request: Request, offered: bool) -> Wire | None:
    if not offered:
        return None
    forbid = request.parallel is False
    if choice is None:
        return {"type": "auto", "disable_parallel_tool_use": True} if forbid else None
    wire: Wire = {"type": _CHOICES[choice.pick]}
    if choice.pick is Pick.NAMED:
        wire["name"] = choice.name or choice.hosted
    if forbid and choice.pick is not Pick.NONE:
        wire["disable_parallel_tool_use"] = True
    return wire

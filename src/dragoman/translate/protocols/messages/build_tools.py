"""Build `tools`, `mcp_servers` and `tool_choice` of a Messages request."""

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from dragoman.translate.hub.ext import is_indispensable, record_unread_fields, restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.profile import Profile
from dragoman.translate.hub.request import Custom, Function, Hosted, Pick, Request, Tool, ToolChoice
from dragoman.translate.passes.adapt_tools import make_root_object
from dragoman.translate.protocols.messages.build_content import ContentBuilder
from dragoman.translate.protocols.messages.wire import NAME, Wire, hosted_name

_EQUIVALENT_KINDS = frozenset({"web_search", "code_execution", "mcp"})
_NATIVE: dict[str, Wire] = {
    "web_search": {"type": "web_search_20250305", "name": "web_search"},
    "code_execution": {"type": "code_execution_20250825", "name": "code_execution"},
    "tool_search": {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
}
_CHOICES = {Pick.AUTO: "auto", Pick.NONE: "none", Pick.REQUIRED: "any", Pick.NAMED: "tool"}


def _has_equivalent(tool: Hosted, deferred: bool) -> bool:
    """Return whether Anthropic has an equivalent; its tool search needs deferred tools and is run by the vendor."""
    if tool.kind != "tool_search":
        return tool.kind in _EQUIVALENT_KINDS
    return deferred and not (isinstance(tool.raw, dict) and tool.raw.get("execution") == "client")


def _is_chosen_by_name(tool: Tool, choice: ToolChoice) -> bool:
    """Return whether a named choice means this tool."""
    if isinstance(tool, Hosted):
        return tool.kind == choice.hosted or (choice.name is not None and hosted_name(tool) == choice.name)
    return tool.name == choice.name


def _build_hosted(tool: Hosted, request: Request, content: ContentBuilder) -> Wire:
    """Build a vendor-run tool for `tools`."""
    if content.same_protocol:
        return dict(tool.raw) if isinstance(tool.raw, dict) else {"type": tool.kind}
    content.ledger.record_approximated(tool.at, f"{tool.kind!r} works differently at this upstream")
    record_unread_fields(tool, NAME, content.ledger)
    wire = dict(_NATIVE[tool.kind])
    match tool.kind:
        case "web_search":
            if tool.context_size not in (None, "medium"):
                content.ledger.record_dropped(f"{tool.at}/search_context_size", "Messages has no search context size")
            _set_search_limits(wire, tool, request)
        case "code_execution":
            _refuse_container(tool)
    return wire


def _build_server(tool: Hosted, content: ContentBuilder) -> Wire:
    """Build an entry of `mcp_servers`."""
    raw = tool.raw if isinstance(tool.raw, dict) else {}
    if content.same_protocol:
        return dict(raw)
    if tool.server_url is None:
        raise BadRequest(
            tool.at, "The MCP server has no server_url, and this upstream reaches MCP servers only by URL."
        )
    if content.protocol == "responses" and raw.get("require_approval", "always") != "never":
        raise BadRequest(
            f"{tool.at}/require_approval", 'require_approval must be "never": this upstream does not ask for approval.'
        )
    content.ledger.record_approximated(tool.at, "this upstream calls the MCP server differently")
    record_unread_fields(tool, NAME, content.ledger)
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
        raise BadRequest(f"{tool.at}/container", "container names a container or files of another vendor. Remove it.")


class OfferedTools(Struct):
    """The tools that a request offers, and the choice among them."""

    tools: list[Wire] = field(default_factory=list)
    servers: list[Wire] = field(default_factory=list)
    choice: Wire | None = None


def build_tools(request: Request, profile: Profile, thinking: bool, content: ContentBuilder) -> OfferedTools:
    choice = request.tool_choice
    tools: Sequence[Tool] = (
        request.tools if content.same_protocol else _drop_unsupported(request.tools, choice, content)
    )
    if choice is not None:
        can_force = profile.forced_choice and (profile.forced_choice_while_thinking or not thinking)
        tools, choice = _apply_choice(tools, choice, can_force, content)
    offered = OfferedTools()
    hosted = [tool for tool in tools if type(tool) is Hosted]
    searchable = bool(hosted) and any(tool.kind == "tool_search" for tool in hosted)
    for tool in tools:
        match tool:
            case Function():
                offered.tools.append(_build_function(tool, searchable or content.same_protocol, content))
            case Hosted(kind="mcp"):
                offered.servers.append(_build_server(tool, content))
                offered.tools += _build_toolsets(tool, tools, content)
            case Hosted():
                offered.tools.append(_build_hosted(tool, request, content))
            case Custom():
                raise BadRequest(tool.at, "A Messages upstream has no custom tools. Use a function.")
    if request.max_tool_calls is not None:
        _record_call_limit(request, tools, content)
    offered.choice = _build_choice(choice, request, bool(offered.tools))
    return offered


def _drop_unsupported(tools: Sequence[Tool], choice: ToolChoice | None, content: ContentBuilder) -> tuple[Tool, ...]:
    """Leave out hosted tools without an equivalent; raise BadRequest if it is the only tool or a forced one."""
    if Hosted not in map(type, tools):
        return tuple(tools)
    deferred = any(isinstance(tool, Function) and tool.deferred for tool in tools)
    kept = tuple(tool for tool in tools if not isinstance(tool, Hosted) or _has_equivalent(tool, deferred))
    for tool in tools:
        if not isinstance(tool, Hosted) or tool in kept:
            continue
        if is_indispensable(tool, choice, kept):
            raise BadRequest(
                tool.at, f"A Messages upstream has no tool like {tool.kind!r}. Remove it or choose another model."
            )
        content.ledger.record_dropped(tool.at, f"this upstream has no tool like {tool.kind!r}")
    return kept


def _apply_choice(
    tools: Sequence[Tool], choice: ToolChoice, can_force: bool, content: ContentBuilder
) -> tuple[Sequence[Tool], ToolChoice]:
    """Return tools and choice as the model allows them; a choice that cannot be forced becomes a shorter list."""
    if choice.allowed is not None:
        allowed = frozenset(choice.allowed)
        content.ledger.record_approximated(choice.at, "only the allowed tools are offered")
        tools = _keep_chosen(tools, lambda tool: _tool_name(tool) in allowed, content)
    if choice.pick not in (Pick.REQUIRED, Pick.NAMED):
        return tools, choice
    if not content.same_protocol:  # its own clients may name a tool of an MCP server, which is not listed
        _check_choice(tools, choice)
    if can_force:
        return tools, choice
    if choice.pick is Pick.NAMED:
        tools = _keep_chosen(tools, lambda tool: _is_chosen_by_name(tool, choice), content)
    content.ledger.record_approximated(choice.at, "this model cannot be forced to call a tool")
    return tools, ToolChoice(Pick.AUTO, choice.at)


def _keep_chosen(tools: Sequence[Tool], is_chosen: Callable[[Tool], bool], content: ContentBuilder) -> Sequence[Tool]:
    for tool in tools:
        if not is_chosen(tool):
            content.ledger.record_dropped(tool.at, "the tool choice excludes it")
    return [tool for tool in tools if is_chosen(tool)]


def _check_choice(tools: Sequence[Tool], choice: ToolChoice) -> None:
    if not tools:
        raise BadRequest(
            choice.at, "tool_choice requires a tool call, but no tool is offered. Add a tool or remove tool_choice."
        )
    if choice.pick is Pick.NAMED and not any(_is_chosen_by_name(tool, choice) for tool in tools):
        raise BadRequest(
            choice.at, f"tool_choice names {choice.name or choice.hosted!r}, which is not among the tools."
        )


def _tool_name(tool: Tool) -> str:
    return (tool.server_name or tool.kind) if isinstance(tool, Hosted) else tool.name


def _build_function(tool: Function, can_defer: bool, content: ContentBuilder) -> Wire:
    wire: Wire = {"name": tool.name}
    if tool.description is not None:
        wire["description"] = tool.description
    if content.same_protocol and tool.parameters is not None:
        wire["input_schema"] = tool.parameters
    else:
        wire["input_schema"] = make_root_object(
            tool.parameters, lambda why: content.ledger.record_approximated(tool.pointer("parameters"), why)
        )
    if tool.strict:
        wire["strict"] = True
    if tool.deferred and can_defer:
        wire["defer_loading"] = True
    elif tool.deferred:
        content.ledger.record_approximated(
            f"{tool.at}/defer_loading", "without tool search the tool is offered at once"
        )
    if tool.cache is not None:
        content.mark(wire, tool.cache)
    if content.same_protocol:
        restore(wire, tool.ext)
    return wire


def _build_toolsets(server: Hosted, tools: Sequence[Tool], content: ContentBuilder) -> list[Wire]:
    """Return the toolset that enables a server, unless the client wrote one."""
    raw = server.raw if isinstance(server.raw, dict) else {}
    allowed = server.allowed_tools
    written = any(
        isinstance(tool, Hosted) and tool.kind == "mcp_toolset" and tool.server_name == server.server_name
        for tool in tools
    )
    if content.same_protocol and (written or "tool_configuration" in raw):
        return []
    toolset: Wire = {"type": "mcp_toolset", "mcp_server_name": server.server_name or "server"}
    if allowed is not None:
        toolset["default_config"] = {"enabled": False}
        toolset["configs"] = {name: {"enabled": True} for name in allowed}
    return [toolset]


def _record_call_limit(request: Request, tools: Sequence[Tool], content: ContentBuilder) -> None:
    at = request.pointer("max_tool_calls")
    if any(isinstance(tool, Hosted) and tool.kind == "web_search" for tool in tools):
        content.ledger.record_approximated(at, "the limit applies to each search tool separately")
    else:
        content.ledger.record_dropped(at, "only searches can be limited")


def _build_choice(choice: ToolChoice | None, request: Request, offered: bool) -> Wire | None:
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

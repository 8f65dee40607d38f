"""Vendor-run tools of any protocol come in; Anthropic's own, with what both vendors mean by them, go out."""

from dragoman.hub.ext import note_unread_fields
from dragoman.hub.failure import BadRequest
from dragoman.hub.request import Hosted, Request, Tool, ToolChoice
from dragoman.protocols.messages.build_content import Wire, Writer
from dragoman.protocols.messages.parse_tools import name_of
from dragoman.protocols.messages.wire import NAME

_CARRIED = frozenset({"web_search", "code_execution", "mcp"})

_NATIVE: dict[str, Wire] = {
    "web_search": {"type": "web_search_20250305", "name": "web_search"},
    "code_execution": {"type": "code_execution_20250825", "name": "code_execution"},
    "tool_search": {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
}


def is_carried(tool: Hosted, deferred: bool) -> bool:
    """Whether Anthropic has an equal; a search for tools needs deferred tools, and must not be the client's to run."""
    if tool.kind != "tool_search":
        return tool.kind in _CARRIED
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
    writer.ledger.approximated(tool.at, f"{tool.kind!r} is run by this upstream in its own way")
    note_unread_fields(tool, NAME, writer.ledger)
    wire = dict(_NATIVE[tool.kind])
    match tool.kind:
        case "web_search":
            if tool.context_size is not None:
                writer.ledger.dropped(f"{tool.at}/search_context_size", "how much is read cannot be chosen")
            _search(wire, tool, request)
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
    writer.ledger.approximated(tool.at, "the MCP server is called by this upstream in its own way")
    note_unread_fields(tool, NAME, writer.ledger)
    wire: Wire = {"type": "url", "url": tool.server_url, "name": tool.server_name or "server"}
    if tool.authorization is not None:
        wire["authorization_token"] = tool.authorization
    return wire


def _search(wire: Wire, tool: Hosted, request: Request) -> None:
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

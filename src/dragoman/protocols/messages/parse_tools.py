"""Parse the tools, MCP servers and tool choice of a Messages request."""

from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.framing.fields import Fields, unread_fields
from dragoman.hub.request import Ext, Function, Hosted, Pick, Tool, ToolChoice, ToolFilter, UrlSources
from dragoman.protocols.messages.parse_content import parse_cache

_PICKS = {"auto": Pick.AUTO, "any": Pick.REQUIRED, "tool": Pick.NAMED, "none": Pick.NONE}
_TOOLSET = "mcp_toolset"

# The types of one tool end with a date: their common beginning -> the hub's kind.
_FAMILIES = {
    "web_search_": "web_search",
    "web_fetch_": "web_fetch",
    "code_execution_": "code_execution",
    "tool_search_tool_": "tool_search",
}
_FIRST_FILTERING = "20260209"
_OTHER_FAMILIES = ("web_fetch_", "bash_", "text_editor_", "memory_", "computer_", "browser_", "advisor_", _TOOLSET)


def parse_tools(top: Fields) -> tuple[Tool, ...]:
    servers = [_parse_server(server) for server in top.objects("mcp_servers") or ()]
    known = {server.server_name for server in servers}
    tools = [_parse_tool(tool) for tool in top.objects("tools") or () if not _is_plain_toolset(tool, known)]
    if not servers:
        return tuple(tools)
    chosen = {tool.server_name: tool.allowed_tools for tool in tools if type(tool) is Hosted}
    named = (replace(server, allowed_tools=chosen.get(server.server_name)) for server in servers)
    return (*tools, *named)


def parse_choice(top: Fields, tools: Iterable[Tool]) -> tuple[ToolChoice | None, bool | None]:
    """Return the choice, and False if parallel calls are forbidden."""
    choice = top.obj("tool_choice")
    if choice is None:
        return None, None
    kind = choice.need_text("type")
    if kind not in _PICKS:
        raise choice.bad("type", "must be one of auto, any, tool, none")
    parallel = False if choice.flag("disable_parallel_tool_use") else None
    pick = _PICKS[kind]
    if pick is not Pick.NAMED:
        return ToolChoice(pick, choice.at), parallel
    name = choice.need_text("name")
    hosted = next((tool.kind for tool in tools if isinstance(tool, Hosted) and hosted_name(tool) == name), None)
    return ToolChoice(pick, choice.at, name, hosted=hosted), parallel


def hosted_name(tool: Hosted) -> str | None:
    """Return the name under which a vendor-run tool is called, if the client wrote one."""
    name = tool.raw.get("name") if isinstance(tool.raw, dict) else None
    return name if isinstance(name, str) else None


def _parse_tool(tool: Fields) -> Tool:
    kind = tool.text("type", "custom")
    return _parse_function(tool) if kind == "custom" else _parse_hosted(tool, kind)


def _parse_function(tool: Fields) -> Function:
    schema = tool.obj("input_schema")
    cache, control = parse_cache(tool)
    return Function(
        name=tool.need_text("name"),
        at=tool.at,
        description=tool.text("description"),
        parameters=None if schema is None else tool.raw("input_schema"),
        strict=tool.flag("strict"),
        deferred=tool.flag("defer_loading", False),
        cache=cache,
        ext=unread_fields(tool, control),
        schema_key="input_schema",
    )


def _parse_hosted(tool: Fields, kind: str) -> Hosted:
    family = next((name for start, name in _FAMILIES.items() if kind.startswith(start)), kind)
    raw = {"type": kind, **tool.rest()}
    if kind == _TOOLSET:
        return Hosted(family, raw, tool.at, server_name=tool.text("mcp_server_name"), allowed_tools=_enabled_tools(raw))
    tool.text("name")
    if family not in ("web_search", "web_fetch"):
        return Hosted(
            family, raw, tool.at, known=family != kind or kind.startswith(_OTHER_FAMILIES), ext=unread_fields(tool)
        )
    sources, unread = _parse_url_sources(tool)
    return Hosted(
        kind=family,
        raw=raw,
        at=tool.at,
        allowed_domains=_parse_domains(tool, "allowed_domains"),
        blocked_domains=_parse_domains(tool, "blocked_domains"),
        max_uses=tool.integer("max_uses"),
        max_content_tokens=tool.integer("max_content_tokens"),
        cites_pages=_cites_pages(tool),
        url_sources=sources,
        filters_results=_filters_results(kind, raw),
        location=tool.raw("user_location"),
        ext={**unread_fields(tool), **unread},
    )


def _cites_pages(tool: Fields) -> bool:
    """Return whether fetched pages are cited: unless the client says no."""
    citations = tool.obj("citations")
    return citations is None or citations.flag("enabled", True)


def _parse_url_sources(tool: Fields) -> tuple[UrlSources, Ext]:
    """Return what may name an address, and the sources that this version does not know."""
    sources = tool.obj("url_sources")
    if sources is None:
        return UrlSources(), {}
    user = _parse_filter(sources, "user_input")
    found = UrlSources(
        user_input=user.only is None,
        client_tools=_parse_filter(sources, "client_tool_results"),
        server_tools=_parse_filter(sources, "server_tool_results"),
    )
    unread = sources.rest()
    return found, {"url_sources": unread} if unread else {}


def _parse_filter(sources: Fields, key: str) -> ToolFilter:
    chosen = sources.obj(key)
    kind = "all" if chosen is None else chosen.need_text("type")
    if chosen is None or kind == "all":
        return ToolFilter()
    if kind == "none":
        return ToolFilter(only=frozenset())
    if kind not in ("only", "except"):
        raise chosen.bad("type", "must be one of all, none, only, except")
    names = frozenset(tool.need_text("name") for tool in chosen.objects("tools") or ())
    return ToolFilter(only=names) if kind == "only" else ToolFilter(besides=names)


def _filters_results(kind: str, tool: dict[str, object]) -> bool:
    """Return whether the model may call the tool from code, which versions since 2026 allow by default."""
    return kind.rpartition("_")[2] >= _FIRST_FILTERING and tool.get("allowed_callers") != ["direct"]


def _enabled_tools(toolset: dict[str, object]) -> tuple[str, ...] | None:
    """Return the tools that a toolset enables one by one; None if it configures anything else."""
    configs = toolset.get("configs")
    plain = toolset.keys() == {"type", "mcp_server_name", "default_config", "configs"}
    if not plain or toolset["default_config"] != {"enabled": False} or not isinstance(configs, dict):
        return None
    return tuple(configs) if all(config == {"enabled": True} for config in configs.values()) else None


def _parse_domains(tool: Fields, key: str) -> tuple[str, ...]:
    domains = tool.items(key) or []
    if not all(isinstance(domain, str) for domain in domains):
        raise tool.bad(key, "must be an array of strings")
    return tuple(str(domain) for domain in domains)


def _parse_server(server: Fields) -> Hosted:
    raw = server.rest()
    return Hosted(
        kind="mcp",
        raw=raw,
        at=server.at,
        server_url=server.need_text("url"),
        server_name=server.need_text("name"),
        authorization=server.text("authorization_token"),
        ext={key: value for key, value in unread_fields(server).items() if key != "type"},
    )


def _is_plain_toolset(tool: Fields, servers: set[str | None]) -> bool:
    """Return whether a toolset only enables a listed server."""
    raw = tool.rest()
    if set(raw) != {"type", "mcp_server_name"} or raw["type"] != _TOOLSET:
        return False
    return tool.need_text("mcp_server_name") in servers

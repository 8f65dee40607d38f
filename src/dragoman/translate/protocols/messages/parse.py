"""Parse a client's Messages request into a hub request; unread fields are extras in `ext`."""

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.framing.fields import BadField, Fields, read_body, unread_fields
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import EFFORTS
from dragoman.translate.hub.request import (
    NO_ATTRIBUTION,
    NO_SAMPLING,
    Attribution,
    Cache,
    Ext,
    Format,
    Function,
    Hosted,
    Json,
    Pick,
    Reasoning,
    Request,
    Role,
    Sampling,
    Shape,
    Switch,
    Tool,
    ToolChoice,
    ToolFilter,
    Turn,
    UrlSources,
    VendorTerms,
)
from dragoman.translate.protocols.messages.parse_content import parse_cache, parse_content
from dragoman.translate.protocols.messages.wire import NAME, hosted_name

_SYSTEM = Role.SYSTEM  # looked up once: on Python 3.11, each look-up of a member is slow
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": _SYSTEM}
_SWITCHES = {switch.value: switch for switch in Switch}

# The hub's names of fields -> their pointers.
_POINTERS = {
    "turns": "/messages",
    "parallel": "/tool_choice/disable_parallel_tool_use",
    "stop": "/stop_sequences",
    "user": "/metadata/user_id",
    "reasoning": "/thinking",
    "cache": "/cache_control",
}

_PICKS = {"auto": Pick.AUTO, "any": Pick.REQUIRED, "tool": Pick.NAMED, "none": Pick.NONE}
_TOOLSET = "mcp_toolset"

# The types of one tool end with a date: their common beginning -> the hub's kind.
_FAMILIES = {
    "web_search_": "web_search",
    "web_fetch_": "web_fetch",
    "code_execution_": "code_execution",
    "tool_search_tool_": "tool_search",
}
_NO_TERMS, _COMPACTION = VendorTerms(), VendorTerms(not_a_reply=("compaction", "a compacted context"))
_FIRST_FILTERING = "20260209"
_OTHER_FAMILIES = ("web_fetch_", "bash_", "text_editor_", "memory_", "computer_", "browser_", "advisor_", _TOOLSET)


# The fields of which `parse_settings` makes its settings.
SETTINGS = frozenset(
    (
        *("thread", "container", "tool_choice", "output_config", "output_format", "thinking", "metadata"),
        *("cache_control", "temperature", "top_p", "top_k", "stop_sequences", "service_tier", "speed", "compaction"),
    )
)


class _Settings(Struct, frozen=True):
    """What the shortest requests leave out."""

    tool_choice: ToolChoice | None = None
    parallel: bool | None = None
    sampling: Sampling = NO_SAMPLING
    reasoning: Reasoning | None = None
    format: Format | None = None
    cache: Cache | None = None
    attribution: Attribution = NO_ATTRIBUTION
    vendor: VendorTerms = _NO_TERMS
    ext: Ext = {}  # that only this protocol has
    holders: tuple[Fields | None, ...] = ()  # of settings, where fields may have been left unread


_NO_SETTINGS = _Settings()


def parse(body: bytes, ledger: Ledger) -> Request:
    return _parse(body, _parse_max_tokens)


def parse_for_count(body: bytes, ledger: Ledger) -> Request:
    """Parse the body of a count_tokens request, which needs no max_tokens."""
    return _parse(body, lambda top: top.integer("max_tokens"))


def _parse(body: bytes, read_max_tokens: Callable[[Fields], int | None]) -> Request:
    raw = read_body(body)
    return _parse_request(Fields(raw), raw, read_max_tokens)


def _parse_request(top: Fields, raw: dict[str, Json], read_max_tokens: Callable[[Fields], int | None]) -> Request:
    is_plain = not top.has_any(SETTINGS)
    if not is_plain:
        _refuse_server_state(top)
    model = top.need_text("model")
    max_tokens = read_max_tokens(top)
    turns = _parse_turns(top)
    tools = _parse_tools(top)
    settings = _NO_SETTINGS if is_plain else parse_settings(top, tools)
    format = settings.format
    return Request(
        NAME,
        model,
        turns,
        tools,
        settings.tool_choice,
        settings.parallel,
        max_tokens=max_tokens,
        sampling=settings.sampling,
        reasoning=settings.reasoning,
        format=format,
        cache=settings.cache,
        attribution=settings.attribution,
        vendor=settings.vendor,
        stream=top.flag("stream", False),
        where=_POINTERS if format is None else _POINTERS | {"format": format.at},
        ext=settings.ext | unread_fields(top, *settings.holders),  # after all that reads
        raw=raw,
    )


def parse_settings(top: Fields, tools: Iterable[Tool]) -> _Settings:
    choice, parallel = _parse_choice(top, tools)
    output = top.obj("output_config")
    thinking = top.obj("thinking")
    metadata = top.obj("metadata")
    cache, control = parse_cache(top)
    reasoning, extras = _parse_reasoning(thinking, output)
    format, format_fields = _parse_format(top, output)
    return _Settings(
        tool_choice=choice,
        parallel=parallel,
        sampling=_parse_sampling(top),
        reasoning=reasoning,
        format=format,
        cache=cache,
        attribution=_parse_attribution(top, metadata),
        vendor=_COMPACTION if top.has("compaction") else _NO_TERMS,
        ext=extras | _parse_extras(top),
        holders=(output, thinking, metadata, control, format_fields),
    )


def _parse_sampling(top: Fields) -> Sampling:
    return Sampling(
        temperature=top.number("temperature"),
        top_p=top.number("top_p"),
        top_k=top.integer("top_k"),
        stop=_parse_stop(top),
    )


def _parse_attribution(top: Fields, metadata: Fields | None) -> Attribution:
    return Attribution(
        user=metadata.text("user_id") if metadata is not None else None,
        service_tier="default" if top.text("service_tier") == "standard_only" else None,
    )


def _refuse_server_state(top: Fields) -> None:
    if top.has("thread"):
        detail: dict[str, object] = {"error_code": "thread_unsupported_request"}
        message = "This gateway keeps no threads. Send the whole conversation without `thread`."
        raise RequestError(Failure(Kind.BAD_REQUEST, message, at="/thread", detail=detail))
    container = top.raw("container")
    named = container.get("id") if isinstance(container, dict) else container
    if named is not None:
        raise BadRequest("/container", "container names a container that exists only at its vendor. Remove it.")


def _parse_max_tokens(top: Fields) -> int:
    value = top.integer("max_tokens")
    if value is None:
        raise BadField("/max_tokens", "is required")
    if value < 0:
        raise top.bad("max_tokens", "must not be negative")
    return value


def _parse_turns(top: Fields) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    system = top.text_or_objects("system")
    if system:
        turns.append(Turn(_SYSTEM, parse_content(system, "/system"), "/system"))
    messages = top.need_objects("messages")
    if not messages:
        raise top.bad("messages", "must hold at least one message")
    for message in messages:
        role = message.one_of("role", _ROLES)
        content = message.text_or_objects("content")
        if role is None or content is None:
            raise BadField(message.pointer("role" if role is None else "content"), "is required")
        parts = parse_content(content, f"{message.at}/content")
        turns.append(Turn(_ROLES[role], parts, message.at, unread_fields(message)))
    return tuple(turns)


def _parse_stop(top: Fields) -> tuple[str, ...]:
    stops = top.items("stop_sequences")
    if not stops:
        return ()
    if not all(isinstance(stop, str) for stop in stops):
        raise top.bad("stop_sequences", "must be an array of strings")
    return tuple(str(stop) for stop in stops)


def _parse_reasoning(thinking: Fields | None, output: Fields | None) -> tuple[Reasoning | None, Ext]:
    """Return the reasoning settings, and those that only this protocol has."""
    extras: Ext = {}
    effort = output.text("effort") if output is not None else None
    if effort is not None and effort not in EFFORTS:
        extras["output_config/effort"] = effort
        effort = None
    kind = thinking.need_text("type") if thinking is not None else None
    if thinking is None or kind not in _SWITCHES:
        if kind is not None:
            extras["thinking/type"] = kind
        return (Reasoning("/output_config/effort", effort) if effort else None), extras
    return (
        Reasoning(
            at="/output_config/effort" if effort else "/thinking",
            effort=effort,
            budget=thinking.integer("budget_tokens"),
            budget_at="/thinking/budget_tokens",
            switch=_SWITCHES[kind],
            switch_at="/thinking",
            show=thinking.text("display"),
            show_at="/thinking/display",
        ),
        extras,
    )


def _parse_format(top: Fields, output: Fields | None) -> tuple[Format | None, Fields | None]:
    for holder, key in ((output, "format"), (top, "output_format")):  # the second is the older place
        if holder is None or not holder.has(key):
            continue
        format = holder.need_obj(key)
        if format.need_text("type") != "json_schema":
            raise format.bad("type", 'must be "json_schema"')
        format.need_obj("schema")
        return Format(Shape.SCHEMA, format.at, schema=format.raw("schema")), format
    return None, None


def _parse_extras(top: Fields) -> Ext:
    """Return values that the hub does not have, without the protocol's defaults."""
    extras: Ext = {}
    for key, usual in (("service_tier", ("auto", "standard_only")), ("speed", ("standard",)), ("container", ())):
        value = top.raw(key)
        if value is not None and value not in usual:
            extras[key] = value
    return extras


def _parse_tools(top: Fields) -> tuple[Tool, ...]:
    servers = [_parse_server(server) for server in top.objects("mcp_servers") or ()]
    given = top.objects("tools") or ()
    if not servers:
        return tuple([_parse_tool(tool) for tool in given])
    known = {server.server_name for server in servers}
    tools = [_parse_tool(tool) for tool in given if not _is_plain_toolset(tool, known)]
    chosen = {tool.server_name: tool.allowed_tools for tool in tools if type(tool) is Hosted}
    named = (replace(server, allowed_tools=chosen.get(server.server_name)) for server in servers)
    return (*tools, *named)


def _parse_choice(top: Fields, tools: Iterable[Tool]) -> tuple[ToolChoice | None, bool | None]:
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


def _parse_tool(tool: Fields) -> Tool:
    kind = tool.text("type", "custom")
    return _parse_function(tool) if kind == "custom" else _parse_hosted(tool, kind)


def _parse_function(tool: Fields) -> Function:
    schema = tool.raw_obj("input_schema")
    cache, control = parse_cache(tool)
    return Function(
        tool.need_text("name"),
        tool.at,
        tool.text("description"),
        schema,
        tool.flag("strict"),
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
        allowed_domains=tool.texts("allowed_domains"),
        blocked_domains=tool.texts("blocked_domains"),
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

"""Parse the tools and the tool choice of a Responses request."""

from collections.abc import Iterable, Iterator

from dragoman.framing.fields import Fields, unread_fields
from dragoman.hub.request import (
    Custom,
    Ext,
    Function,
    Grammar,
    Hosted,
    Pick,
    Tool,
    ToolChoice,
)
from dragoman.protocols.responses.wire import CARRIED_KINDS, HOSTED_TOOLS, OTHER_TOOLS, Wire

_PICKS = {"auto": Pick.AUTO, "none": Pick.NONE, "required": Pick.REQUIRED}
_HOSTED_DEFAULTS: Wire = {
    "container": {"type": "auto"},
    "require_approval": "never",
    "external_web_access": True,
    "search_content_types": ["text"],
}


def parse_tools(tools: Iterable[Fields], ext: Ext) -> Iterator[Tool]:
    """Parse the tools, also those in namespaces; other fields of a namespace go into the request's `ext`."""
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
        ext=unread_fields(tool),
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
        ext=unread_fields(tool, format_),
    )


def _read_hosted(type_: str, tool: Fields) -> Hosted:
    raw = {"type": type_, **tool.rest()}
    kind = HOSTED_TOOLS.get(type_, type_)
    if kind not in CARRIED_KINDS:  # other protocols reject or drop the whole tool
        return Hosted(kind, raw, tool.at, known=type_ in OTHER_TOOLS)
    filters = tool.obj("filters")
    size = tool.text("search_context_size")
    return Hosted(
        kind,
        raw,
        tool.at,
        allowed_domains=_read_strings(filters, "allowed_domains") if filters else (),
        location=tool.raw("user_location"),
        context_size=size,
        server_url=tool.text("server_url"),
        server_name=tool.text("server_label"),
        authorization=tool.text("authorization"),
        allowed_tools=_read_allowed_tools(tool),
        ext=_drop_defaults(unread_fields(tool, filters)),  # last: it depends on what was read
    )


def _drop_defaults(ext: Ext) -> Ext:
    return {key: value for key, value in ext.items() if _HOSTED_DEFAULTS.get(key) != value}


def _read_strings(fields: Fields, key: str) -> tuple[str, ...]:
    values = fields.items(key) or []
    if not all(isinstance(value, str) for value in values):
        raise fields.bad(key, "must be an array of strings")
    return tuple(str(value) for value in values)


def _read_allowed_tools(tool: Fields) -> tuple[str, ...] | None:
    """Return the tools of an MCP server that may be called: names, or a filter that holds only names."""
    if isinstance(tool.raw("allowed_tools"), list):
        return _read_strings(tool, "allowed_tools")
    chosen = tool.obj("allowed_tools")
    return _read_strings(chosen, "tool_names") if chosen is not None and chosen.has("tool_names") else None


def parse_choice(fields: Fields) -> ToolChoice | None:
    """Parse `tool_choice`; None for auto, which is the default."""
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
            tools = choice.need_objects("tools")
            hosted = {kind for tool in tools if (kind := HOSTED_TOOLS.get(tool.text("type") or "")) is not None}
            return ToolChoice(pick, at, allowed=tuple(map(_read_allowed_name, tools)), allowed_hosted=frozenset(hosted))
        case type_:
            return ToolChoice(Pick.NAMED, at, choice.text("name"), hosted=HOSTED_TOOLS.get(type_, type_))


def _read_allowed_name(tool: Fields) -> str:
    type_ = tool.text("type") or "function"
    return tool.text("name") or tool.text("server_label") or HOSTED_TOOLS.get(type_, type_)

"""Parse the tools and the tool choice of a Chat request."""

from dragoman.framing.fields import Fields
from dragoman.hub.request import Custom, Ext, Function, Grammar, Hosted, Pick, Tool, ToolChoice
from dragoman.protocols.chat.parse_content import unread_fields, unread_fields_with
from dragoman.protocols.chat.wire import SEARCH_OPTIONS

WEB_SEARCH = "web_search"
_PICKS = {"auto": Pick.AUTO, "none": Pick.NONE, "required": Pick.REQUIRED, "any": Pick.REQUIRED}


def parse_tools(body: Fields) -> tuple[Tool, ...]:
    """Parse `tools`, the older `functions`, and `web_search_options`, which stands for a tool."""
    tools = [_read_tool(tool) for tool in body.objects("tools") or ()]
    functions = body.objects("functions")
    if functions is not None:
        tools += [_read_function(function, function.at, None) for function in functions]
    search = body.obj(SEARCH_OPTIONS)
    if search is not None:
        tools.append(_read_search(search, body.raw(SEARCH_OPTIONS)))
    return tuple(tools)


def _read_tool(tool: Fields) -> Tool:
    kind = tool.text("type", "function")
    if kind == "custom":
        return _read_custom(tool)
    if kind != "function":
        return Hosted(kind, {"type": kind, **tool.rest()}, tool.at, ext=unread_fields(tool), known=False)
    if tool.has("function"):
        return _read_function(tool.need_obj("function"), tool.at, tool)
    return _read_function(tool, tool.at, None)  # the shape of Responses; some clients use it here too


def _read_function(function: Fields, at: str, holder: Fields | None) -> Function:
    name = function.need_text("name")
    description = function.text("description")
    schema = function.raw("parameters") if function.obj("parameters") is not None else None
    strict = function.flag("strict")
    return Function(
        name,
        at,
        description=description,
        parameters=schema,
        strict=strict,
        ext=unread_fields(function) if holder is None else unread_fields_with(holder, "function", function),
        fields_at="" if holder is None else function.at,
    )


def _read_custom(tool: Fields) -> Custom:
    custom = tool.need_obj("custom")
    name = custom.need_text("name")
    description = custom.text("description")
    shape = custom.obj("format")
    grammar = None
    ext: Ext = {}
    if shape is not None and shape.text("type", "text") == "grammar":
        rules = shape.need_obj("grammar")
        grammar = Grammar(rules.need_text("syntax"), rules.need_text("definition"))
        ext = {f"custom/format/{name}": value for name, value in unread_fields(shape).items()}
    return Custom(
        name,
        tool.at,
        description=description,
        grammar=grammar,
        ext=unread_fields_with(tool, "custom", custom) | ext,
        fields_at=custom.at,
    )


def _read_search(search: Fields, raw: object) -> Hosted:
    place = search.obj("user_location")
    location: object = None
    if place is not None:
        near = place.obj("approximate")
        location = {"type": place.text("type", "approximate"), **(near.rest() if near is not None else {})}
    size = search.text("search_context_size")
    unread_options = unread_fields(search) if place is None else unread_fields_with(search, "user_location", place)
    return Hosted(
        WEB_SEARCH,
        raw,
        search.at,
        location=location,
        context_size=None if size == "medium" else size,
        ext=unread_options,
    )


def parse_choice(body: Fields) -> ToolChoice | None:
    key = "tool_choice" if body.has("tool_choice") else "function_call"
    value = body.raw(key)
    if value is None:
        return None
    at = body.pointer(key)
    if isinstance(value, str):
        if value not in _PICKS:
            raise body.bad(key, "must be one of " + ", ".join(_PICKS))
        return ToolChoice(_PICKS[value], at)
    choice = body.need_obj(key)
    kind = choice.text("type", "function")
    if kind == "allowed_tools":
        return _read_allowed(choice)
    if kind in ("function", "custom"):
        named = choice.obj(kind) or choice
        return ToolChoice(Pick.NAMED, at, name=named.need_text("name"), custom=kind == "custom")
    return ToolChoice(Pick.NAMED, at, hosted=kind)


def _read_allowed(choice: Fields) -> ToolChoice:
    allowed = choice.obj("allowed_tools") or choice
    mode = allowed.one_of("mode", ("auto", "required")) or "auto"
    names = []
    for tool in allowed.need_objects("tools"):
        named = tool.obj(tool.text("type", "function")) or tool
        names.append(named.need_text("name"))
    return ToolChoice(_PICKS[mode], choice.at, allowed=tuple(names))

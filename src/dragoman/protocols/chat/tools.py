"""Tools and the choice among them, both ways: Chat's tools come in as the hub's, and go out again."""

from collections.abc import Sequence

from dragoman.framing.fields import Fields
from dragoman.hub.ext import is_indispensable, restore
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import Target
from dragoman.hub.request import Custom, Ext, Function, Grammar, Hosted, Pick, Request, Tool, ToolChoice
from dragoman.protocols.chat.parts import unread, unread_with
from dragoman.protocols.chat.wire import NAME

WEB_SEARCH = "web_search"
_SEARCH_OPTIONS = "web_search_options"

_PICKS = {"auto": Pick.AUTO, "none": Pick.NONE, "required": Pick.REQUIRED, "any": Pick.REQUIRED}
_WORDS = {Pick.AUTO: "auto", Pick.NONE: "none", Pick.REQUIRED: "required"}


def read_tools(body: Fields) -> tuple[Tool, ...]:
    """`tools`, the older `functions`, and the search that Chat keeps among its settings."""
    tools = [_read_tool(tool) for tool in body.objects("tools") or ()]
    tools += [_read_function(function, function.at, None) for function in body.objects("functions") or ()]
    search = body.obj(_SEARCH_OPTIONS)
    if search is not None:
        tools.append(_read_search(search, body.raw(_SEARCH_OPTIONS)))
    return tuple(tools)


def _read_tool(tool: Fields) -> Tool:
    kind = tool.text("type", "function")
    if kind == "custom":
        return _read_custom(tool)
    if kind != "function":
        return Hosted(kind, {"type": kind, **tool.rest()}, tool.at, ext=unread(tool), known=False)
    if tool.has("function"):
        return _read_function(tool.need_obj("function"), tool.at, tool)
    return _read_function(tool, tool.at, None)  # as Responses writes it; some clients do so here


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
        ext=unread(function) if holder is None else unread_with(holder, "function", function),
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
        ext = {f"custom/format/{name}": value for name, value in unread(shape).items()}
    return Custom(
        name, tool.at, description=description, grammar=grammar, ext=unread_with(tool, "custom", custom) | ext
    )


def _read_search(search: Fields, raw: object) -> Hosted:
    place = search.obj("user_location")
    location: object = None
    if place is not None:
        near = place.obj("approximate")
        location = {"type": place.text("type", "approximate"), **(near.rest() if near is not None else {})}
    size = search.text("search_context_size")
    told = unread(search) if place is None else unread_with(search, "user_location", place)
    return Hosted(
        WEB_SEARCH,
        raw,
        search.at,
        location=location,
        context_size=None if size == "medium" else size,
        ext=told,
    )


def read_choice(body: Fields) -> ToolChoice | None:
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


def write_tools(request: Request, target: Target, ledger: Ledger) -> dict[str, object]:
    """The fields of the body that say which tools there are and which may be called."""
    own = request.protocol == NAME
    body: dict[str, object] = {}
    tools: list[dict[str, object]] = []
    for tool in request.tools:
        match tool:
            case Function():
                tools.append(_write_function(tool, own, target, ledger))
            case Custom():
                tools.append(_write_custom(tool, own))
            case Hosted():
                _write_hosted(tool, own, body, tools)
    if not own:
        _drop_hosted(request, ledger)
    if tools:
        body["tools"] = tools
    if request.tool_choice is not None:
        choice = request.tool_choice
        if choice.pick is Pick.REQUIRED and "no_required" in target.quirks:
            choice = _by_name(choice, request.tools, ledger)
        body |= _write_choice(choice, request.tools, bool(tools))
    if request.parallel is not None and tools:
        body["parallel_tool_calls"] = request.parallel
    return body


def _write_function(tool: Function, own: bool, target: Target, ledger: Ledger) -> dict[str, object]:
    function: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    elif "needs_parameters" in target.quirks:
        function["parameters"] = {"type": "object", "properties": {}}  # what leaving them out means
    if tool.strict is not None:
        function["strict"] = tool.strict
    if tool.deferred:
        ledger.approximated(f"{tool.at}/defer_loading", "Chat has no tool search: the tool is offered at once")
    if tool.cache is not None:
        ledger.dropped(tool.cache.at, "Chat has no cache breakpoint on tools")
    wire: dict[str, object] = {"type": "function", "function": function}
    if own:
        restore(wire, tool.ext)
    return wire


def _write_custom(tool: Custom, own: bool) -> dict[str, object]:
    custom: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        custom["description"] = tool.description
    if tool.grammar is not None:
        rules = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
        custom["format"] = {"type": "grammar", "grammar": rules}
    wire: dict[str, object] = {"type": "custom", "custom": custom}
    if own:
        restore(wire, tool.ext)
    return wire


def _write_hosted(tool: Hosted, own: bool, body: dict[str, object], tools: list[dict[str, object]]) -> None:
    if not own:
        return
    if tool.at == f"/{_SEARCH_OPTIONS}":
        body[_SEARCH_OPTIONS] = tool.raw
    elif isinstance(tool.raw, dict):
        tools.append(dict(tool.raw))


def _drop_hosted(request: Request, ledger: Ledger) -> None:
    """A tool that the vendor runs is refused where the answer hangs on it, and else left out."""
    others = [tool for tool in request.tools if not isinstance(tool, Hosted)]
    for tool in request.tools:
        if not isinstance(tool, Hosted):
            continue
        if is_indispensable(tool, request.tool_choice, others):
            raise BadRequest(tool.at, f"a Chat upstream cannot run the tool {tool.kind!r}")
        ledger.dropped(tool.at, f"a Chat upstream cannot run {tool.kind!r}")


def _by_name(choice: ToolChoice, tools: Sequence[Tool], ledger: Ledger) -> ToolChoice:
    """For a server that hears only a named choice: a tool that is the only one can be named."""
    allowed = [t for t in tools if not isinstance(t, Hosted) and (choice.allowed is None or t.name in choice.allowed)]
    if len(allowed) == 1:
        only = allowed[0]
        return ToolChoice(Pick.NAMED, choice.at, name=only.name, custom=isinstance(only, Custom))
    if allowed:
        ledger.approximated(choice.at, "this server leaves it to the model whether to call one of several tools")
    return choice


def _write_choice(choice: ToolChoice, tools: Sequence[Tool], offered: bool) -> dict[str, object]:
    if choice.hosted is not None:
        raise BadRequest(choice.at, f"a Chat upstream cannot be made to run {choice.hosted!r}")
    if not offered:
        if choice.pick in (Pick.REQUIRED, Pick.NAMED):
            raise BadRequest(choice.at, "a tool must be called, but there is none")
        return {}
    if choice.pick is Pick.NAMED:
        kind = "custom" if choice.custom else "function"
        return {"tool_choice": {"type": kind, kind: {"name": choice.name}}}
    word = _WORDS[choice.pick]
    if choice.allowed is None or choice.pick is Pick.NONE:
        return {"tool_choice": word}
    custom = {tool.name for tool in tools if isinstance(tool, Custom)}
    kinds = [("custom" if name in custom else "function", name) for name in choice.allowed]
    allowed = [{"type": kind, kind: {"name": name}} for kind, name in kinds]
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": word, "tools": allowed}}}

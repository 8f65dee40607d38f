"""Build the tools and the tool choice of a Chat request."""

from collections.abc import Sequence

from dragoman.hub.ext import is_indispensable, restore
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import Target
from dragoman.hub.request import Custom, Function, Hosted, Pick, Request, Tool, ToolChoice
from dragoman.protocols.chat.wire import NAME, SEARCH_OPTIONS

_CHOICES = {Pick.AUTO: "auto", Pick.NONE: "none", Pick.REQUIRED: "required"}


def build_tools(request: Request, target: Target, ledger: Ledger) -> dict[str, object]:
    """Return the fields of the body that list the tools and choose among them."""
    same_protocol = request.protocol == NAME
    body: dict[str, object] = {}
    tools: list[dict[str, object]] = []
    for tool in request.tools:
        match tool:
            case Function():
                tools.append(_write_function(tool, same_protocol, target, ledger))
            case Custom():
                tools.append(_write_custom(tool, same_protocol))
            case Hosted():
                _write_hosted(tool, same_protocol, body, tools)
    if not same_protocol:
        _drop_hosted(request, ledger)
    if tools:
        body["tools"] = tools
    if request.tool_choice is not None:
        choice = request.tool_choice
        if choice.pick is Pick.REQUIRED and "no_required" in target.quirks:
            choice = _choose_only_tool(choice, request.tools, ledger)
        body |= _write_choice(choice, request.tools, bool(tools))
    if request.parallel is not None and tools:
        body["parallel_tool_calls"] = request.parallel
    return body


def _write_function(tool: Function, same_protocol: bool, target: Target, ledger: Ledger) -> dict[str, object]:
    function: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    elif "needs_parameters" in target.quirks:
        function["parameters"] = {"type": "object", "properties": {}}  # the same as leaving them out
    if tool.strict is not None:
        function["strict"] = tool.strict
    if tool.deferred:
        ledger.note_approximated(f"{tool.at}/defer_loading", "Chat has no tool search; the tool is offered at once")
    if tool.cache is not None:
        ledger.note_dropped(tool.cache.at, "Chat has no cache breakpoint on tools")
    wire: dict[str, object] = {"type": "function", "function": function}
    if same_protocol:
        restore(wire, tool.ext)
    return wire


def _write_custom(tool: Custom, same_protocol: bool) -> dict[str, object]:
    custom: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        custom["description"] = tool.description
    if tool.grammar is not None:
        rules = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
        custom["format"] = {"type": "grammar", "grammar": rules}
    wire: dict[str, object] = {"type": "custom", "custom": custom}
    if same_protocol:
        restore(wire, tool.ext)
    return wire


def _write_hosted(tool: Hosted, same_protocol: bool, body: dict[str, object], tools: list[dict[str, object]]) -> None:
    if not same_protocol:
        return
    if tool.at == f"/{SEARCH_OPTIONS}":
        body[SEARCH_OPTIONS] = tool.raw
    elif isinstance(tool.raw, dict):
        tools.append(dict(tool.raw))


def _drop_hosted(request: Request, ledger: Ledger) -> None:
    """Leave out tools that the vendor runs; raise BadRequest if the answer depends on one of them."""
    if Hosted not in map(type, request.tools):
        return
    others = [tool for tool in request.tools if type(tool) is not Hosted]
    for tool in request.tools:
        if type(tool) is not Hosted:
            continue
        if is_indispensable(tool, request.tool_choice, others):
            raise BadRequest(
                tool.at, f"This model's provider cannot run the tool {tool.kind!r}. Remove it or choose another model."
            )
        ledger.note_dropped(tool.at, f"a Chat upstream cannot run {tool.kind!r}")


def _choose_only_tool(choice: ToolChoice, tools: Sequence[Tool], ledger: Ledger) -> ToolChoice:
    """Replace "required" by the name of the only tool, for servers that honour only a named choice."""
    allowed = [t for t in tools if not isinstance(t, Hosted) and (choice.allowed is None or t.name in choice.allowed)]
    if len(allowed) == 1:
        only = allowed[0]
        return ToolChoice(Pick.NAMED, choice.at, name=only.name, custom=isinstance(only, Custom))
    if allowed:
        ledger.note_approximated(choice.at, "this server cannot require one of several tools")
    return choice


def _write_choice(choice: ToolChoice, tools: Sequence[Tool], offered: bool) -> dict[str, object]:
    if choice.hosted is not None:
        raise BadRequest(
            choice.at,
            f"tool_choice names {choice.hosted!r}, which a Chat upstream cannot run. Name a function instead.",
        )
    if not offered:
        if choice.pick in (Pick.REQUIRED, Pick.NAMED):
            raise BadRequest(
                choice.at, "tool_choice requires a tool call, but tools is empty. Add a tool or remove tool_choice."
            )
        return {}
    if choice.pick is Pick.NAMED:
        kind = "custom" if choice.custom else "function"
        return {"tool_choice": {"type": kind, kind: {"name": choice.name}}}
    word = _CHOICES[choice.pick]
    if choice.allowed is None or choice.pick is Pick.NONE:
        return {"tool_choice": word}
    custom = {tool.name for tool in tools if isinstance(tool, Custom)}
    kinds = [("custom" if name in custom else "function", name) for name in choice.allowed]
    allowed = [{"type": kind, kind: {"name": name}} for kind, name in kinds]
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": word, "tools": allowed}}}

"""Hub tools and the choice among them come in; tool specifications and sentences for the prompt go out."""

from collections.abc import Sequence

from msgspec import Struct, field

from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Custom, Function, Hosted, Pick, Request, Tool, ToolCall, ToolChoice
from dragoman.passes.tool_pointers import tool_pointer
from dragoman.protocols.kiro.payload import InputSchema, ToolEntry, ToolSpecification
from dragoman.protocols.kiro.schema import clean_schema

_MUST_CALL = "You must answer by calling at least one of the tools that you are offered."
_ONE_AT_A_TIME = "Call at most one tool in each of your turns."
_NOT_OFFERED = "A tool of an earlier turn. It is not available any more: do not call it."


class Offer(Struct):
    """What a request offers the model to call, and what it is told about it."""

    tools: list[ToolEntry] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)


def calls_nothing(request: Request) -> bool:
    """Whether the client forbids every call."""
    return request.tool_choice is not None and request.tool_choice.pick is Pick.NONE


def write_tools(request: Request, ledger: Ledger) -> Offer:
    if calls_nothing(request):
        for tool in request.tools:
            ledger.dropped(tool.at, "no tool may be called, so none is offered")
        return Offer()
    choice = request.tool_choice
    functions = _without_doubles(_carried(request.tools, choice, ledger), ledger)
    if choice is not None and choice.allowed is not None:
        functions = _allowed(functions, choice, choice.allowed, ledger)
    tools = [_specification(tool, request.protocol, ledger) for tool in functions]
    offer = Offer(tools, _sentences(request, functions, ledger))
    offer.tools += _stubs(request, {tool.name for tool in functions}, ledger)
    return offer


def _carried(tools: Sequence[Tool], choice: ToolChoice | None, ledger: Ledger) -> list[Function]:
    """The functions. A tool that a vendor runs is a refusal where the answer hangs on it, and else left out."""
    functions = [tool for tool in tools if isinstance(tool, Function)]
    for tool in tools:
        match tool:
            case Hosted(kind=kind, at=at):
                if not functions or (choice is not None and choice.hosted == kind):
                    raise BadRequest(at, f"Kiro has no tool like {kind!r}")
                ledger.dropped(at, f"Kiro has no tool like {kind!r}")
            case Custom(at=at):
                raise BadRequest(at, "Kiro has no freeform tools")
    return functions


def _without_doubles(functions: list[Function], ledger: Ledger) -> list[Function]:
    kept: dict[str, Function] = {}
    for tool in functions:
        if kept.setdefault(tool.name, tool) is not tool:
            ledger.dropped(tool.at, "another tool of this name is offered already")
    return list(kept.values())


def _allowed(functions: list[Function], choice: ToolChoice, names: tuple[str, ...], ledger: Ledger) -> list[Function]:
    ledger.approximated(choice.at, "only the allowed tools are offered")
    for tool in functions:
        if tool.name not in names:
            ledger.dropped(tool.at, "only the allowed tools are offered")
    return [tool for tool in functions if tool.name in names]


def _sentences(request: Request, functions: Sequence[Function], ledger: Ledger) -> list[str]:
    sentences: list[str] = []
    choice = request.tool_choice
    if choice is not None and choice.pick in (Pick.REQUIRED, Pick.NAMED):
        _refuse_unoffered(choice, functions)
        ledger.approximated(choice.at, "Kiro cannot be forced to call a tool; it is asked to in the prompt")
        named = choice.pick is Pick.NAMED
        sentences.append(f"You must answer by calling the tool {choice.name}." if named else _MUST_CALL)
    if request.parallel is False:
        ledger.approximated(request.pointer("parallel"), "one call at a time is asked for in the prompt")
        if functions:
            sentences.append(_ONE_AT_A_TIME)
    return sentences


def _refuse_unoffered(choice: ToolChoice, functions: Sequence[Function]) -> None:
    if not functions:
        raise BadRequest(choice.at, "a tool must be called, but none is offered")
    if choice.pick is Pick.NAMED and choice.name not in {tool.name for tool in functions}:
        raise BadRequest(choice.at, f"the tool {choice.name or choice.hosted!r} is not offered")


def _specification(tool: Function, protocol: str, ledger: Ledger) -> ToolEntry:
    at = tool_pointer(tool, protocol, "parameters")
    schema = clean_schema(tool.parameters, lambda why: ledger.approximated(at, why))
    description = tool.description
    if description is None or not description.strip():
        ledger.invented(tool_pointer(tool, protocol, "description"), "Kiro demands a description of every tool")
        description = f"The tool {tool.name}."
    if tool.strict:
        ledger.dropped(tool_pointer(tool, protocol, "strict"), "Kiro does not hold a model to a schema")
    if tool.deferred:
        ledger.approximated(tool_pointer(tool, protocol, "defer_loading"), "the tool is offered at once")
    if tool.cache is not None:
        ledger.dropped(tool.cache.at, "Kiro has no cache breakpoints")
    return ToolEntry(ToolSpecification(tool.name, description, InputSchema(schema)))


def _stubs(request: Request, offered: set[str], ledger: Ledger) -> list[ToolEntry]:
    """Kiro refuses a history that names a tool which is not offered."""
    stubs: dict[str, ToolEntry] = {}
    calls = [part for turn in request.turns for part in turn.parts if isinstance(part, ToolCall)]
    for call in calls:
        if call.name in offered or call.name in stubs:
            continue
        ledger.invented(
            request.pointer("tools"), "tools that the history names must be offered; they are marked as gone"
        )
        schema: dict[str, object] = {"type": "object", "properties": {}}
        stubs[call.name] = ToolEntry(ToolSpecification(call.name, _NOT_OFFERED, InputSchema(schema)))
    return list(stubs.values())

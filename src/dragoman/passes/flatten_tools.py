"""A request comes in; the same request with its tool calls and their results told as plain text goes out.

For upstreams that refuse tool traffic where no tool is offered.
"""

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Part, Request, Text, ToolCall, ToolResult, Turn


def flatten_tools(request: Request, ledger: Ledger) -> Request:
    names: dict[str, str] = {}
    turns = tuple(_flat_turn(turn, names, ledger) for turn in request.turns)
    same = all(new is old for new, old in zip(turns, request.turns, strict=True))
    return request if same else replace(request, turns=turns)


def _flat_turn(turn: Turn, names: dict[str, str], ledger: Ledger) -> Turn:
    if not any(isinstance(part, ToolCall | ToolResult) for part in turn.parts):
        return turn
    parts: list[Part] = []
    for part in turn.parts:
        match part:
            case ToolCall():
                names[part.id] = part.name
                parts.append(call_to_text(part, ledger))
            case ToolResult():
                parts += result_to_text(part, names.get(part.call_id), ledger)
            case _:
                parts.append(part)
    return replace(turn, parts=tuple(parts))


def call_to_text(call: ToolCall, ledger: Ledger) -> Text:
    """A call in words that cannot be taken for a call."""
    ledger.note_approximated(call.at, "a call that cannot be sent as one is told as text")
    if call.cache is not None:
        ledger.note_dropped(call.cache.at, "a call told as text is no cache breakpoint")
    return Text(f"(The tool {call.name} was called with these arguments: {call.arguments or '{}'})", call.at)


def result_to_text(result: ToolResult, name: str | None, ledger: Ledger) -> list[Part]:
    """A result as its content, with a line before it that says whose it is."""
    ledger.note_approximated(result.at, "a result that cannot be sent as one is told as text")
    if result.cache is not None:
        ledger.note_dropped(result.cache.at, "a result told as text is no cache breakpoint")
    whose = f"the tool {name}" if name else f"the tool call {result.call_id}"
    return [Text(f"({'Error' if result.is_error else 'Result'} of {whose}:)", result.at), *result.content]

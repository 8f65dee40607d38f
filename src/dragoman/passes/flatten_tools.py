"""Turn the tool calls of a request and their results into plain text.

For upstreams that reject calls and results in a request without tools.
"""

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Part, Request, Text, ToolCall, ToolResult, Turn


def flatten_tools(request: Request, ledger: Ledger) -> Request:
    names: dict[str, str] = {}
    turns = tuple(_flatten_turn(turn, names, ledger) for turn in request.turns)
    same = all(new is old for new, old in zip(turns, request.turns, strict=True))
    return request if same else replace(request, turns=turns)


def _flatten_turn(turn: Turn, names: dict[str, str], ledger: Ledger) -> Turn:
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
    """Return a call as text that cannot be confused with a call."""
    ledger.note_approximated(call.at, "a call that cannot be sent as one is sent as text")
    if call.cache is not None:
        ledger.note_dropped(call.cache.at, "a call sent as text cannot be a cache breakpoint")
    return Text(f"(The tool {call.name} was called with these arguments: {call.arguments or '{}'})", call.at)


def result_to_text(result: ToolResult, name: str | None, ledger: Ledger) -> list[Part]:
    """Return the content of a result, after a line that names its call."""
    ledger.note_approximated(result.at, "a result that cannot be sent as one is sent as text")
    if result.cache is not None:
        ledger.note_dropped(result.cache.at, "a result sent as text cannot be a cache breakpoint")
    source = f"the tool {name}" if name else f"the tool call {result.call_id}"
    return [Text(f"({'Error' if result.is_error else 'Result'} of {source}:)", result.at), *result.content]

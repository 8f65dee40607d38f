"""Turns of another protocol come in; the same with one result for every call, and a call for every result, go out."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Part, Role, Text, ToolCall, ToolResult, Turn

_UNANSWERED = "[no result]"


class _Slot(Struct):
    """A call under an id of its own, and the result that counts."""

    id: str
    result: ToolResult | None = None


def paired(turns: Sequence[Turn], ledger: Ledger) -> list[Turn]:
    """Call ids become unique; of several results the last counts; a missing one is made up; an orphan becomes text."""
    calls: dict[int, _Slot] = {}  # by the identity of the call
    results: dict[int, _Slot] = {}  # by the identity of the result
    _match(turns, calls, results, ledger)
    fitted: list[Turn] = []
    for turn in turns:
        parts = [fitting for part in turn.parts for fitting in _fit(part, calls, results, ledger)]
        fitted.append(replace(turn, parts=tuple(parts)))
        made_up = [_made_up(part, calls[id(part)], ledger) for part in turn.parts if _is_open(part, calls)]
        if made_up:
            fitted.append(Turn(Role.USER, tuple(made_up), turn.at))
    return fitted


def _match(turns: Sequence[Turn], calls: dict[int, _Slot], results: dict[int, _Slot], ledger: Ledger) -> None:
    known: dict[str, _Slot] = {}  # by the client's id: some servers use the same ones again in every step
    counts: dict[str, int] = {}
    for part in (part for turn in turns for part in turn.parts):
        if isinstance(part, ToolCall):
            count = counts[part.id] = counts.get(part.id, 0) + 1
            known[part.id] = calls[id(part)] = _Slot(part.id if count == 1 else f"{part.id}-{count}")
        elif isinstance(part, ToolResult) and part.call_id in known:
            slot = results[id(part)] = known[part.call_id]
            if slot.result is not None:
                ledger.dropped(slot.result.at, "a call has one result: the last one counts")
            slot.result = part


def _fit(part: Part, calls: dict[int, _Slot], results: dict[int, _Slot], ledger: Ledger) -> Sequence[Part]:
    if isinstance(part, ToolCall):
        slot = calls[id(part)]
        return [part if slot.id == part.id else replace(part, id=slot.id)]
    if not isinstance(part, ToolResult):
        return [part]
    if id(part) not in results:
        ledger.approximated(part.at, "a result whose call is missing is told as text")
        label = "error" if part.is_error else "result"
        return [Text(f"[{label} of tool call {part.call_id}]", part.at), *part.content]
    slot = results[id(part)]
    return [replace(part, call_id=slot.id)] if slot.result is part else []


def _is_open(part: Part, calls: dict[int, _Slot]) -> bool:
    return isinstance(part, ToolCall) and calls[id(part)].result is None


def _made_up(call: Part, slot: _Slot, ledger: Ledger) -> ToolResult:
    ledger.invented(call.at, "every call must have a result")
    return ToolResult(slot.id, (Text(_UNANSWERED, call.at),), call.at)

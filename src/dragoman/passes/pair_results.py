"""A request comes in; the same request with every tool call answered in the turn right after it goes out."""

import re
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Part, Request, Role, Text, ToolCall, ToolResult, Turn
from dragoman.passes.flatten_tools import call_to_text, result_to_text

UNANSWERED = "This call was not answered: its result is unknown."

_ID_MAX = 64
_ID_OTHER = re.compile(r"[^A-Za-z0-9_-]")


class _Slot(Struct):
    """A call and the result that must follow it."""

    call: ToolCall  # under an id of its own
    turn: int
    result: ToolResult | None = None


def pair_results(request: Request, ledger: Ledger) -> Request:
    """Results move to right after their calls; of several the last counts; a missing one is made up.

    A result whose call is missing becomes text, and so does a call that is not the assistant's. Call ids become unique.
    """
    turns = merge_turns(request.turns, ledger)
    pairing = _Pairing(ledger)
    kept = [pairing.read(index, turn) for index, turn in enumerate(turns)]
    return replace(request, turns=tuple(_answered(kept, pairing.slots, ledger)))


class _Pairing:
    """The calls of a conversation as it is read."""

    def __init__(self, ledger: Ledger) -> None:
        self.slots: list[list[_Slot]] = []  # by turn
        self._ledger = ledger
        self._open: dict[str, list[_Slot]] = {}  # by the client's id, which may not be unique
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def read(self, index: int, turn: Turn) -> Turn:
        """The turn without its results."""
        made: list[_Slot] = []
        self.slots.append(made)
        if not any(isinstance(part, ToolCall | ToolResult) for part in turn.parts):
            return turn
        parts: list[Part] = []
        for part in turn.parts:
            match part:
                case ToolCall() if turn.role is Role.ASSISTANT:
                    parts.append(self._call(part, index, made))
                case ToolCall():
                    parts.append(call_to_text(part, self._ledger))
                case ToolResult():
                    parts += self._result(part, index)
                case _:
                    parts.append(part)
        return replace(turn, parts=tuple(parts))

    def _call(self, call: ToolCall, index: int, made: list[_Slot]) -> ToolCall:
        slot = _Slot(replace(call, id=self._fresh(call.id)), index)
        rivals = [other for other in self._open.get(call.id, ()) if other.turn == index]
        self._open[call.id] = [*rivals, slot]
        made.append(slot)
        return slot.call

    def _result(self, result: ToolResult, index: int) -> list[Part]:
        slots = self._open.get(result.call_id)
        if slots is None:
            return result_to_text(result, None, self._ledger)
        slot = next((slot for slot in slots if slot.result is None), slots[-1])
        if slot.result is not None:
            self._ledger.note_dropped(slot.result.at, "a call has one result: the last one counts")
        if index != slot.turn + 1:
            self._ledger.note_approximated(result.at, "a result is sent right after its call")
        slot.result = replace(result, call_id=slot.call.id)
        return []

    def _fresh(self, id: str) -> str:
        """An id in the alphabet that every vendor takes; equal requests get equal ids."""
        stem = _ID_OTHER.sub("_", id)[:_ID_MAX] or "call"
        fresh = stem
        while fresh in self._taken:
            count = self._counts.get(stem, 1) + 1
            self._counts[stem] = count
            suffix = f"-{count}"
            fresh = stem[: _ID_MAX - len(suffix)] + suffix
        self._taken.add(fresh)
        return fresh


def _answered(turns: list[Turn], slots: list[list[_Slot]], ledger: Ledger) -> list[Turn]:
    answered: list[Turn] = []
    for index, turn in enumerate(turns):
        due = tuple(_result_of(slot, ledger) for slot in slots[index - 1]) if index else ()
        if due and turn.role is not Role.USER:
            answered.append(Turn(Role.USER, due, turns[index - 1].at))
        elif due:
            turn = replace(turn, parts=(*due, *turn.parts))
        answered.append(turn)
    if slots and slots[-1]:
        answered.append(Turn(Role.USER, tuple(_result_of(slot, ledger) for slot in slots[-1]), turns[-1].at))
    return answered


def _result_of(slot: _Slot, ledger: Ledger) -> ToolResult:
    if slot.result is not None:
        return slot.result
    ledger.note_invented(slot.call.at, "every call must have a result")
    return ToolResult(slot.call.id, (Text(UNANSWERED),), slot.call.at, is_error=True)


def merge_turns(turns: Iterable[Turn], ledger: Ledger) -> tuple[Turn, ...]:
    """Runs of one role as one turn each: the parts in order, standing where the first turn stood."""
    runs: list[list[Turn]] = []
    for turn in turns:
        if runs and runs[-1][0].role is turn.role:
            runs[-1].append(turn)
        else:
            runs.append([turn])
    return tuple(run[0] if len(run) == 1 else _joined(run, ledger) for run in runs)


def _joined(run: list[Turn], ledger: Ledger) -> Turn:
    for turn in run[1:]:
        for pointer in turn.ext:
            ledger.note_dropped(f"{turn.at}/{pointer}", "the turn was joined to the one before it")
    return replace(run[0], parts=tuple(part for turn in run for part in turn.parts))

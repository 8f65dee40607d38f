"""Make the tool calls and results of a request acceptable to strict upstreams: paired, or as plain text."""

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Part, Request, Role, Text, ToolCall, ToolResult, Turn

UNANSWERED = "This call was not complete: its result is unknown."

_PAIRED = frozenset((ToolCall, ToolResult))
_ID_MAX = 64
_ID_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_NO_RESULT = "[no result]"


class _Slot(Struct):
    """A call and its result, if there is one."""

    call: ToolCall  # with a unique id
    turn: int
    result: ToolResult | None = None


class _SameId(Struct):
    """The calls of one turn that have the same id."""

    turn: int
    slots: list[_Slot]
    answered: int = 0  # number of calls, from the first, that have a result

    def find_unanswered(self) -> _Slot:
        """Return the first call without a result, or the last call."""
        while self.answered < len(self.slots) and self.slots[self.answered].result is not None:
            self.answered += 1
        return self.slots[min(self.answered, len(self.slots) - 1)]


def pair_results(request: Request, ledger: Ledger) -> Request:
    """Move results to right after their calls; keep the last of several; invent a missing one.

    A result without a call becomes text, and so does a call that is not the assistant's. Call ids become unique.
    """
    turns = merge_turns(request.turns, ledger)
    if not _has_tools(turns):
        return request if turns is request.turns else replace(request, turns=turns)
    calls = _CallIndex(ledger)
    kept = [calls.read(index, turn) for index, turn in enumerate(turns)]
    return replace(request, turns=tuple(_insert_results(kept, calls.slots, ledger)))


def _has_tools(turns: Sequence[Turn]) -> bool:
    """Return whether there is a call or a result."""
    for turn in turns:
        for part in turn.parts:
            if type(part) is ToolCall or type(part) is ToolResult:
                return True
    return False


class _CallIndex:
    """Collects the calls and results of a conversation, turn by turn."""

    def __init__(self, ledger: Ledger) -> None:
        self.slots: list[list[_Slot]] = []  # by turn
        self._ledger = ledger
        self._open: dict[str, _SameId] = {}  # by the client's id, which may not be unique
        self._used_ids: set[str] = set()
        self._counts: dict[str, int] = {}

    def read(self, index: int, turn: Turn) -> Turn:
        """Return the turn without its results."""
        added: list[_Slot] = []
        self.slots.append(added)
        if _PAIRED.isdisjoint(map(type, turn.parts)):
            return turn
        parts: list[Part] = []
        for part in turn.parts:
            match part:
                case ToolCall() if turn.role is Role.ASSISTANT:
                    parts.append(self._call(part, index, added))
                case ToolCall():
                    parts.append(_call_to_text(part, self._ledger))
                case ToolResult():
                    parts += self._result(part, index)
                case _:
                    parts.append(part)
        return replace(turn, parts=tuple(parts))

    def _call(self, call: ToolCall, index: int, added: list[_Slot]) -> ToolCall:
        slot = _Slot(replace(call, id=self._unique_id(call.id)), index)
        same = self._open.get(call.id)
        if same is not None and same.turn == index:
            same.slots.append(slot)
        else:
            self._open[call.id] = _SameId(index, [slot])
        added.append(slot)
        return slot.call

    def _result(self, result: ToolResult, index: int) -> list[Part]:
        same = self._open.get(result.call_id)
        if same is None:
            return _result_to_text(result, None, self._ledger)
        slot = same.find_unanswered()
        if slot.result is not None:
            self._ledger.record_dropped(slot.result.at, "a call has several results: only the last one is sent")
        if index != slot.turn + 1:
            self._ledger.record_approximated(result.at, "a result is sent right after its call")
        slot.result = replace(result, call_id=slot.call.id)
        return []

    def _unique_id(self, id: str) -> str:
        """Return an unused id of characters that every vendor accepts. Equal requests get equal ids."""
        stem = _ID_OTHER.sub("_", id)[:_ID_MAX] or "call"
        unique = stem
        while unique in self._used_ids:
            count = self._counts.get(stem, 1) + 1
            self._counts[stem] = count
            suffix = f"-{count}"
            unique = stem[: _ID_MAX - len(suffix)] + suffix
        self._used_ids.add(unique)
        return unique


def _insert_results(turns: list[Turn], slots: list[list[_Slot]], ledger: Ledger) -> list[Turn]:
    complete: list[Turn] = []
    for index, turn in enumerate(turns):
        results = tuple(_require_result(slot, ledger) for slot in slots[index - 1]) if index else ()
        if results and turn.role is not Role.USER:
            complete.append(Turn(Role.USER, results, turns[index - 1].at))
        elif results:
            turn = replace(turn, parts=(*results, *turn.parts))
        complete.append(turn)
    if slots and slots[-1]:
        complete.append(Turn(Role.USER, tuple(_require_result(slot, ledger) for slot in slots[-1]), turns[-1].at))
    return complete


def _require_result(slot: _Slot, ledger: Ledger) -> ToolResult:
    if slot.result is not None:
        return slot.result
    ledger.record_invented(slot.call.at, "every call must have a result")
    return ToolResult(slot.call.id, (Text(UNANSWERED),), slot.call.at, is_error=True)


def merge_turns(turns: Sequence[Turn], ledger: Ledger) -> tuple[Turn, ...]:
    """Merge consecutive turns of one role into one turn, with the position of the first."""
    if not _has_neighbours(turns):  # as nearly always
        return tuple(turns)
    runs: list[list[Turn]] = []
    for turn in turns:
        if runs and runs[-1][0].role is turn.role:
            runs[-1].append(turn)
        else:
            runs.append([turn])
    return tuple(run[0] if len(run) == 1 else _merge_run(run, ledger) for run in runs)


def _has_neighbours(turns: Sequence[Turn]) -> bool:
    """Return whether two consecutive turns have the same role."""
    role = None
    for turn in turns:
        if turn.role is role:
            return True
        role = turn.role
    return False


def _merge_run(run: list[Turn], ledger: Ledger) -> Turn:
    for turn in run[1:]:
        for pointer in turn.ext:
            ledger.record_dropped(f"{turn.at}/{pointer}", "the turn was merged with the one before it")
    return replace(run[0], parts=tuple(part for turn in run for part in turn.parts))


def flatten_tools(request: Request, ledger: Ledger) -> Request:
    """Turn all calls and results into text, for upstreams that reject them in a request without tools."""
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
                parts.append(_call_to_text(part, ledger))
            case ToolResult():
                parts += _result_to_text(part, names.get(part.call_id), ledger)
            case _:
                parts.append(part)
    return replace(turn, parts=tuple(parts))


def _call_to_text(call: ToolCall, ledger: Ledger) -> Text:
    """Return a call as text that cannot be confused with a call."""
    ledger.record_approximated(call.at, "a call that cannot be sent as one is sent as text")
    return Text(f"(The tool {call.name} was called with these arguments: {call.arguments or '{}'})", call.at)


def _result_to_text(result: ToolResult, name: str | None, ledger: Ledger) -> list[Part]:
    """Return the content of a result, after a line that names its call."""
    ledger.record_approximated(result.at, "a result that cannot be sent as one is sent as text")
    source = f"the tool {name}" if name else f"the tool call {result.call_id}"
    return [Text(f"({'Error' if result.is_error else 'Result'} of {source}:)", result.at), *result.content]


# Pairing that leaves results where they are, for upstreams that accept them anywhere after their calls


class _PairedCall(Struct):
    """A call's unique id, and its result."""

    id: str
    result: ToolResult | None = None


_Pairs = dict[int, _PairedCall]  # by the identity of a call or a result


def pair_calls(turns: Sequence[Turn], ledger: Ledger) -> Sequence[Turn]:
    """Return the turns with unique call ids and one result for each call.

    Of several results the last is kept, a missing one is invented, and one without a call becomes text.
    """
    if not _has_tools(turns):
        return turns
    calls: _Pairs = {}  # by the identity of the call
    results: _Pairs = {}  # by the identity of the result
    _match_results(turns, calls, results, ledger)
    fitted: list[Turn] = []
    for turn in turns:
        parts = [fitting for part in turn.parts for fitting in _fit_part(part, calls, results, ledger)]
        fitted.append(replace(turn, parts=tuple(parts)))
        made = ((part, calls[id(part)]) for part in turn.parts if type(part) is ToolCall)
        invented = [_invent_result(part, pair, ledger) for part, pair in made if pair.result is None]
        if invented:
            fitted.append(Turn(Role.USER, tuple(invented), turn.at))
    return fitted


def _match_results(turns: Sequence[Turn], calls: _Pairs, results: _Pairs, ledger: Ledger) -> None:
    known: dict[str, _PairedCall] = {}  # by the client's id; some servers use the same ids in every step
    counts: dict[str, int] = {}
    for part in (part for turn in turns for part in turn.parts):
        if type(part) is ToolCall:
            count = counts[part.id] = counts.get(part.id, 0) + 1
            known[part.id] = calls[id(part)] = _PairedCall(part.id if count == 1 else f"{part.id}-{count}")
        elif type(part) is ToolResult and part.call_id in known:
            pair = results[id(part)] = known[part.call_id]
            if pair.result is not None:
                ledger.record_dropped(pair.result.at, "a call has one result: the last one counts")
            pair.result = part


def _fit_part(part: Part, calls: _Pairs, results: _Pairs, ledger: Ledger) -> Sequence[Part]:
    if type(part) is ToolCall:
        pair = calls[id(part)]
        return [part if pair.id == part.id else replace(part, id=pair.id)]
    if type(part) is not ToolResult:
        return [part]
    if id(part) not in results:
        ledger.record_approximated(part.at, "a result without a call is sent as text")
        label = "error" if part.is_error else "result"
        return [Text(f"[{label} of tool call {part.call_id}]", part.at), *part.content]
    pair = results[id(part)]
    return [replace(part, call_id=pair.id)] if pair.result is part else []


def _invent_result(call: Part, pair: _PairedCall, ledger: Ledger) -> ToolResult:
    ledger.record_invented(call.at, "every call must have a result")
    return ToolResult(pair.id, (Text(_NO_RESULT, call.at),), call.at)

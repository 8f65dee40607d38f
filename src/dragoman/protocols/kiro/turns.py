"""A request whose results are paired comes in; Kiro's history and current message go out, in the order it demands."""

from collections.abc import Sequence

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Role, Text, ToolCall, Turn
from dragoman.passes.merge_turns import merged
from dragoman.protocols.kiro.content import Writer, is_silent
from dragoman.protocols.kiro.payload import AssistantEntry, Entry, UserEntry

# A model that is asked to continue in one word repeats that word: this is a sentence like any other.
_GO_ON = "Please go on from where your last message ends."


def write_turns(turns: Sequence[Turn], opening: str, writer: Writer, ledger: Ledger) -> tuple[list[Entry], UserEntry]:
    """The conversation after its leading instructions, which are the `opening` of its first message."""
    ordered = _in_order(turns, ledger)
    *history, current = (_entry(turn, opening if index == 0 else "", writer) for index, turn in enumerate(ordered))
    assert isinstance(current, UserEntry)
    return history, current


def _entry(turn: Turn, opening: str, writer: Writer) -> Entry:
    if turn.role is Role.USER:
        return UserEntry(writer.user(turn, opening))
    return AssistantEntry(writer.assistant(turn))


def _in_order(turns: Sequence[Turn], ledger: Ledger) -> list[Turn]:
    """Turns that alternate, the first and the last a user's."""
    spoken = [turn for turn in turns if not is_silent(turn)]
    for turn in turns:
        if is_silent(turn):
            ledger.dropped(turn.at, "a turn that says nothing is left out")
    ordered = list(merged(spoken, ledger))
    if not ordered or ordered[0].role is not Role.USER:
        at = ordered[0].at if ordered else ""
        ledger.invented(at, "a conversation must open with a user's turn")
        ordered.insert(0, Turn(Role.USER, (), at))
    last = ordered[-1]
    if last.role is Role.ASSISTANT:
        assert not any(isinstance(part, ToolCall) for part in last.parts)
        ledger.approximated(last.at, "a turn to be continued is sent as one that is over")
        ordered.append(Turn(Role.USER, (Text(_GO_ON),), last.at))
    return ordered

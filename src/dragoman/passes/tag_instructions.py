"""A request comes in; the same request with its later instructions as tagged text of the user goes out.

Instructions that open a conversation stay what they are. Later ones keep their place: hoisting them past turns would
change what they apply to, and break caches.
"""

from itertools import takewhile

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Part, Request, Role, Text, Turn

INSTRUCTING = (Role.SYSTEM, Role.DEVELOPER)


def split_leading_instructions(turns: tuple[Turn, ...]) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    """The instructions that open a conversation, and the conversation."""
    leading = tuple(takewhile(lambda turn: turn.role in INSTRUCTING, turns))
    return leading, turns[len(leading) :]


def tag_later_instructions(request: Request, ledger: Ledger) -> Request:
    leading, turns = split_leading_instructions(request.turns)
    if not any(turn.role in INSTRUCTING for turn in turns):
        return request
    return replace(request, turns=(*leading, *(_placed(turn, ledger) for turn in turns)))


def _placed(turn: Turn, ledger: Ledger) -> Turn:
    if turn.role not in INSTRUCTING:
        return turn
    ledger.note_approximated(turn.at, "later instructions are told as tagged text of the user's turn")
    return replace(turn, role=Role.USER, parts=tuple(_tagged(part) for part in turn.parts))


def _tagged(part: Part) -> Part:
    if not isinstance(part, Text) or not part.text.strip():
        return part
    return replace(part, text=f"<system>\n{part.text}\n</system>")

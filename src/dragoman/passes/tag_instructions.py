"""Turn instructions in the middle of a conversation into tagged text of the user.

Instructions at the beginning of a conversation stay unchanged. Later ones keep their position: moving them would change
what they apply to, and invalidate caches.
"""

from itertools import takewhile

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Part, Request, Role, Text, Turn

INSTRUCTION_ROLES = (Role.SYSTEM, Role.DEVELOPER)


def split_leading_instructions(turns: tuple[Turn, ...]) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    """Return the instructions at the beginning of a conversation, and the remaining turns."""
    leading = tuple(takewhile(lambda turn: turn.role in INSTRUCTION_ROLES, turns))
    return leading, turns[len(leading) :]


def tag_later_instructions(request: Request, ledger: Ledger) -> Request:
    """Return the request with later instructions as user turns, in `<system>` tags."""
    leading, turns = split_leading_instructions(request.turns)
    if not any(turn.role in INSTRUCTION_ROLES for turn in turns):
        return request
    return replace(request, turns=(*leading, *(_tag_turn(turn, ledger) for turn in turns)))


def _tag_turn(turn: Turn, ledger: Ledger) -> Turn:
    if turn.role not in INSTRUCTION_ROLES:
        return turn
    ledger.note_approximated(turn.at, "later instructions are sent as tagged text of the user")
    return replace(turn, role=Role.USER, parts=tuple(_tag_part(part) for part in turn.parts))


def _tag_part(part: Part) -> Part:
    if not isinstance(part, Text) or not part.text.strip():
        return part
    return replace(part, text=f"<system>\n{part.text}\n</system>")

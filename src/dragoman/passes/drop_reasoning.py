"""Remove the reasoning of earlier turns from a request.

For upstreams that reject a signature of their own: it is bound to its context, or to another account.
"""

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Request, Thinking, Turn

WHY = "the upstream rejected the reasoning of earlier turns, so the request was repeated without it"


def drop_reasoning(request: Request, ledger: Ledger) -> Request:
    """Return the request without reasoning. A turn with nothing else is removed as well."""
    turns = tuple(_drop_from_turn(turn, ledger) for turn in request.turns)
    if all(new is old for new, old in zip(turns, request.turns, strict=True)):
        return request
    kept = tuple(new for new, old in zip(turns, request.turns, strict=True) if new.parts or not old.parts)
    return replace(request, turns=kept)


def _drop_from_turn(turn: Turn, ledger: Ledger) -> Turn:
    for part in turn.parts:
        if isinstance(part, Thinking):
            ledger.note_dropped(part.at, WHY)
    parts = tuple(part for part in turn.parts if not isinstance(part, Thinking))
    return turn if len(parts) == len(turn.parts) else replace(turn, parts=parts)

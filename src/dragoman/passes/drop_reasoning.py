"""A request comes in; the same request without the reasoning of earlier turns goes out.

For upstreams that refuse a signature of their own: it is bound to what it was given with, or to another account.
"""

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Request, Thinking, Turn

WHY = "the upstream refused the reasoning of earlier turns, and was asked again without it"


def drop_reasoning(request: Request, ledger: Ledger) -> Request:
    """A turn that held nothing else goes too."""
    turns = tuple(_without(turn, ledger) for turn in request.turns)
    if all(new is old for new, old in zip(turns, request.turns, strict=True)):
        return request
    kept = tuple(new for new, old in zip(turns, request.turns, strict=True) if new.parts or not old.parts)
    return replace(request, turns=kept)


def _without(turn: Turn, ledger: Ledger) -> Turn:
    for part in turn.parts:
        if isinstance(part, Thinking):
            ledger.note_dropped(part.at, WHY)
    parts = tuple(part for part in turn.parts if not isinstance(part, Thinking))
    return turn if len(parts) == len(turn.parts) else replace(turn, parts=parts)

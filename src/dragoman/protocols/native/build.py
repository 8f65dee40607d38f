"""Build the JSON of a hub request."""

import msgspec
from msgspec.structs import replace

from dragoman.hub.ext import note_foreign_fields
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import Target
from dragoman.hub.request import Part, Request, Thinking, Turn


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    """Return the request as JSON, without reasoning of other vendors; raises BadRequest for several answers."""
    if request.n is not None and request.n > 1:
        raise BadRequest(request.pointer("n"), f"n must be 1, got {request.n}: this provider returns one answer.")
    note_foreign_fields(request, "Echo", ledger)  # the only provider that uses this protocol
    turns = tuple(_drop_foreign_reasoning(turn, target, ledger) for turn in request.turns)
    return msgspec.json.encode(replace(request, model=target.model, turns=turns, where={}, ext={}, raw={}))


def _drop_foreign_reasoning(turn: Turn, target: Target, ledger: Ledger) -> Turn:
    if not any(_is_foreign(part, target) for part in turn.parts):
        return turn
    parts: list[Part] = []
    for part in turn.parts:
        if isinstance(part, Thinking) and _is_foreign(part, target):
            ledger.note_dropped(part.at, "only the vendor that issued this reasoning can read it")
        else:
            parts.append(part)
    return replace(turn, parts=tuple(parts))


def _is_foreign(part: Part, target: Target) -> bool:
    return isinstance(part, Thinking) and part.opaque is not None and part.opaque.issuer != target.issuer

"""Build the JSON of a hub request."""

import msgspec
from msgspec.structs import replace

from dragoman.translate.hub.ext import record_foreign_fields
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Part, Request, Thinking


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    """Return the request as JSON, without reasoning of other vendors; raises BadRequest for several answers."""
    if request.n is not None and request.n > 1:
        raise BadRequest(request.pointer("n"), f"n must be 1, got {request.n}: this provider returns one answer.")
    record_foreign_fields(request, "Echo", ledger)  # the only provider that uses this protocol
    turns = tuple(
        replace(turn, parts=tuple(part for part in turn.parts if _can_read(part, target, ledger)))
        for turn in request.turns
    )
    return msgspec.json.encode(replace(request, model=target.model, turns=turns, where={}, ext={}, raw={}))


def _can_read(part: Part, target: Target, ledger: Ledger) -> bool:
    is_foreign = isinstance(part, Thinking) and part.opaque is not None and part.opaque.issuer != target.issuer
    if is_foreign:
        ledger.record_dropped(part.at, "only the vendor that issued this reasoning can read it")
    return not is_foreign

"""Build and read the JSON of a hub request, in which the fields of its records stand beside its own."""

from operator import attrgetter

import msgspec
from msgspec.structs import replace

from dragoman.translate.hub.ext import record_foreign_fields
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import (
    Attribution,
    Part,
    ReplyExtras,
    Request,
    Sampling,
    Thinking,
    VendorTerms,
)

# The fields in their order on the wire, those of the request's records among its own: captures compare bytes.
_WIRE = (
    *("protocol", "model", "turns", "tools", "tool_choice", "parallel", "max_tokens", "sampling.temperature"),
    *("sampling.top_p", "sampling.top_k", "sampling.frequency_penalty", "sampling.presence_penalty", "sampling.seed"),
    *("sampling.stop", "sampling.n", "sampling.logprobs", "sampling.top_logprobs", "reasoning"),
    *("extras.encrypted_reasoning", "extras.kept", "extras.search_sources", "format", "verbosity", "cache"),
    *("cache_key", "attribution.user", "attribution.safety_identifier", "attribution.metadata"),
    *("attribution.service_tier", "max_tool_calls", "vendor.not_a_reply", "vendor.continuation"),
    *("vendor.drops_unbound", "stream", "extras.include_usage", "where", "ext", "raw"),
)
_FIELDS = {path.rpartition(".")[2]: attrgetter(path) for path in _WIRE}


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    """Return the request as JSON, without reasoning of other vendors; raises BadRequest for several answers."""
    count = request.sampling.n
    if count is not None and count > 1:
        raise BadRequest(request.pointer("n"), f"n must be 1, got {count}: this provider returns one answer.")
    record_foreign_fields(request, "Echo", ledger)  # the only provider that uses this protocol
    turns = tuple(
        replace(turn, parts=tuple(part for part in turn.parts if _can_read(part, target, ledger)))
        for turn in request.turns
    )
    sent = replace(request, model=target.model, turns=turns, where={}, ext={}, raw={})
    return msgspec.json.encode({name: read(sent) for name, read in _FIELDS.items()})


def read_request(body: bytes) -> Request:
    """Return the request of a body; raises `msgspec.MsgspecError` if it is none."""
    return replace(
        msgspec.json.decode(body, type=Request),
        sampling=msgspec.json.decode(body, type=Sampling),
        attribution=msgspec.json.decode(body, type=Attribution),
        extras=msgspec.json.decode(body, type=ReplyExtras),
        vendor=msgspec.json.decode(body, type=VendorTerms),
    )


def _can_read(part: Part, target: Target, ledger: Ledger) -> bool:
    is_foreign = isinstance(part, Thinking) and part.opaque is not None and part.opaque.issuer != target.issuer
    if is_foreign:
        ledger.record_dropped(part.at, "only the vendor that issued this reasoning can read it")
    return not is_foreign

"""How the reply to a prepared request is read: its source, its stages, and the events of a whole body."""

import logging

from dragoman.flow.pipes import Source
from dragoman.flow.prepare import Passthrough, Prepared
from dragoman.framing.jsonread import is_object
from dragoman.hub.events import Event, Failed
from dragoman.hub.failure import NO_REPLY, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.stage import Stage
from dragoman.net.tasks import place_of
from dragoman.providers.count import count_text, estimate
from dragoman.stages.estimate_usage import EstimateUsage
from dragoman.stages.raise_tools import RaiseTools

log = logging.getLogger(__name__)


def make_source(prepared: Prepared, ledger: Ledger) -> Source:
    """Return what reads the upstream's bytes."""
    upstream = prepared.upstream
    return Source(upstream.framer(), upstream.decoder(prepared.issuer, ledger))


def make_stages(prepared: Prepared) -> list[Stage[Event, Event]]:
    """Return the stages that the events of this upstream go through."""
    if isinstance(prepared, Passthrough):
        return []
    request, model = prepared.request, prepared.route.model
    stages = [] if prepared.provider.stages is None else list(prepared.provider.stages(request))
    if prepared.tools:
        stages.append(RaiseTools(prepared.tools))
    return [*stages, EstimateUsage(count_text, lambda: estimate(request, model))]


def events_of(prepared: Prepared, body: bytes, ledger: Ledger, streamed: bool) -> list[Event]:
    """Return the events of a body that was read to its end."""
    if not streamed:
        return prepared.upstream.whole(body, prepared.issuer, ledger)
    source = make_source(prepared, ledger)
    return source.feed(body) + source.finish()


def glance(prepared: Passthrough, body: bytes) -> list[Event]:
    """Return what must be known of a body that passes; nothing where we cannot read what the client perhaps can."""
    upstream = prepared.upstream
    try:
        events = (upstream.glance or upstream.whole)(body, prepared.issuer, Ledger())
    except Exception as bug:  # a watcher's bug costs no byte
        log.error("the reply passes unread: %s", place_of(bug))
        return []
    last = events[-1]
    unreadable = isinstance(last, Failed) and last.failure.kind is Kind.CORRUPT and last.failure.code != NO_REPLY
    return [] if unreadable and is_object(body) else events

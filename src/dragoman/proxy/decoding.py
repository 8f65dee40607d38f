"""Read the reply to a prepared request: its source, its stages, and the events of a whole body."""

import logging
from functools import lru_cache

from dragoman.net.errors import describe_fault
from dragoman.net.headers import Headers
from dragoman.proxy.prepared import Prepared, Translated
from dragoman.proxy.source import EventSource
from dragoman.translate.framing.jsonread import is_json_object
from dragoman.translate.framing.sse import SseFramer
from dragoman.translate.hub.events import Event, Failed
from dragoman.translate.hub.failure import NO_REPLY, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Stage, Upstream
from dragoman.translate.hub.request import Request
from dragoman.translate.profiles.token_count import SHORT_SLICE, estimate_request_tokens, estimate_text_tokens
from dragoman.translate.stages.estimate_usage import EstimateUsage
from dragoman.translate.stages.hold_end import HoldContinuation, HoldPause, HoldServerCalls, HoldTruncatedCall
from dragoman.translate.stages.restore_tools import RestoreTools

log = logging.getLogger(__name__)


def make_source(prepared: Prepared, ledger: Ledger, begun: bytes = b"") -> EventSource:
    """Return what reads the upstream's bytes, of which `begun` are the first where they are known already."""
    upstream = prepared.upstream
    framer = upstream.framer
    if upstream.array_framer is not None and begins_array(upstream, begun):
        framer = upstream.array_framer
    return EventSource(framer(), upstream.decoder(prepared.issuer, ledger))


def make_stages(prepared: Translated) -> list[Stage[Event, Event]]:
    """Return the stages that the events of this upstream go through."""
    request, model, rules = prepared.request, prepared.route.model, prepared.provider.replies
    stages: list[Stage[Event, Event]] = [HoldTruncatedCall()] if rules.withholds_cut_calls else []
    if rules.stages is not None:
        stages += rules.stages(request)
    if prepared.tools:
        stages.append(RestoreTools(prepared.tools))
    stages.append(make_estimate(request, model))
    # After the estimate: what is held was paid for as well.
    if prepared.offered.tools is not None:
        stages.append(HoldServerCalls(prepared.offered.tools.kinds))
    if prepared.may_pause:
        stages.append(HoldPause())
    if prepared.upstream.continues:
        stages.append(HoldContinuation())
    return stages


def make_estimate(request: Request, model: str) -> EstimateUsage:
    return EstimateUsage(
        lambda text: estimate_text_tokens(text, model), lambda: estimate_request_tokens(request, model, SHORT_SLICE)
    )


def read_events(prepared: Prepared, body: bytes, ledger: Ledger, streamed: bool) -> list[Event]:
    """Return the events of a body that was read to its end."""
    if not streamed:
        return prepared.upstream.decode_whole(body, prepared.issuer, ledger)
    source = make_source(prepared, ledger)
    return source.feed(body) + source.finish()


def peek_events(prepared: Prepared, body: bytes) -> list[Event]:
    """Return the events of a body that passes unchanged; none if it cannot be read, as the client may be able to."""
    upstream = prepared.upstream
    try:
        events = (upstream.decode_outline or upstream.decode_whole)(body, prepared.issuer, Ledger())
    except Exception as bug:  # a bug in observing must not change the reply
        log.error("the reply passes unobserved: %s", describe_fault(bug))
        return []
    last = events[-1]
    unreadable = type(last) is Failed and last.failure.kind is Kind.CORRUPT and last.failure.code != NO_REPLY
    return [] if unreadable and is_json_object(body) else events


@lru_cache(maxsize=64)
def _reads_events(make_framer: object) -> bool:
    return isinstance(make_framer, type) and issubclass(make_framer, SseFramer)


DOCUMENTS = (b"application/json", b"text/html", b"text/plain")
FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
BOM = b"\xef\xbb\xbf"


def is_named_stream(headers: Headers) -> bool:
    """Whether the content type may be that of a stream: anything that is not a known document type."""
    return not _is_document_type(headers.get(b"content-type") or b"")


@lru_cache(maxsize=64)
def _is_document_type(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() in DOCUMENTS


def begins_document(upstream: Upstream, begun: bytes) -> bool:
    """Return whether a body begins as JSON does: no server-sent event begins with a brace or a bracket."""
    return _reads_events(upstream.framer) and begun.lstrip()[:1] in (b"{", b"[", b"<")


def begins_events(upstream: Upstream, begun: bytes) -> bool:
    """Return whether a body begins with a field of server-sent events, as no JSON document does."""
    return _reads_events(upstream.framer) and begun.removeprefix(BOM).lstrip().startswith(FIELDS)


def begins_array(upstream: Upstream, begun: bytes) -> bool:
    """Whether a document is a stream in the form of a JSON array."""
    return upstream.array_framer is not None and begun.lstrip()[:1] == b"["


def is_stream(upstream: Upstream, body: bytes, *, is_named: bool) -> bool:
    """Whether a whole body is a stream of events; `is_named`: its content type may be that of one."""
    return not begins_document(upstream, body) if is_named else begins_events(upstream, body)

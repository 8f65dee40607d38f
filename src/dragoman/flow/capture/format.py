"""A capture: everything one exchange received, sent and decided, so that it can be read and replayed later."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import cast

import msgspec
from msgspec import Struct, field

from dragoman.framing.redaction import Field
from dragoman.hub.events import Delta, Event
from dragoman.hub.loss import Loss
from dragoman.hub.request import Json

VERSION = 2
WHOLE, CLOSED = "whole", "closed"  # how an answer ends: by itself, or by us before its end
CANCELLED = "cancelled"  # why there is no answer: nobody waited for it any more
NO_PROVIDER = ""  # in place of a provider's name: what is looked up elsewhere
CLIENT_LEFT, STOPPED = "the client left", "the gateway stopped"


class LookupName(StrEnum):
    """What a request looked up; the values are part of the format, so that old captures replay."""

    AUTHORIZE = "authorize"
    RENEW = "renew"
    PROTOCOLS = "speaks"
    OPTIONS = "aim"
    CONTEXT_WINDOW = "window"
    MAX_OUTPUT = "most output"
    LIST_PROBLEM = "list problem"
    RETRY_AFTER = "heed"
    CREDENTIAL = "choose"
    SOONEST_CREDENTIAL = "soonest"
    MEDIA = "fetch"
    CUT_CALLS = "recall"


class Chunk(Struct, frozen=True, array_like=True):
    at: float  # seconds since the request began
    data: bytes


class TimedEvent(Struct, frozen=True, array_like=True):
    """A hub event, when it was seen."""

    at: float
    request: int  # which of the questions to upstreams it answers
    event: str  # as JSON


class Lookup(Struct, frozen=True, array_like=True):
    """What only the world of that moment could tell: a credential's headers, a model's window, a provider's options."""

    provider: str
    name: str
    value: Json


class ClientRequest(Struct, frozen=True):
    """The client's request."""

    method: str
    path: str
    query: str
    headers: tuple[Field, ...]
    body: bytes


class UpstreamResponse(Struct, frozen=True):
    """What an upstream gave back, as its provider's way to send gave it to us."""

    at: float  # when its head had come
    status: int
    headers: tuple[Field, ...]
    chunks: tuple[Chunk, ...] = ()
    end: str = ""  # `whole`, `closed` by us before its end, or what was raised
    ended_at: float = 0.0


class UpstreamRequest(Struct, frozen=True):
    """One request to an upstream."""

    at: float
    route: str  # provider/model
    kind: str  # of the provider
    protocol: str
    method: str
    url: str
    headers: tuple[Field, ...]
    body: bytes
    response: UpstreamResponse | None = None
    error: str = ""  # why there is no answer: the name of what was raised, a colon, and its words


class ClientResponse(Struct, frozen=True):
    """What the client got."""

    status: int
    headers: tuple[Field, ...]
    chunks: tuple[Chunk, ...]


class Settings(Struct, frozen=True):
    """The settings that the request met, without their secrets: enough to meet them again."""

    server: Json = None
    retry: Json = None
    effort: Json = None
    providers: dict[str, Json] = {}  # of the providers that were asked
    quirks: dict[str, tuple[str, ...]] = {}  # quirks
    known_models: dict[str, tuple[str, ...]] = {}  # where nobody answers for the model: the names that there were
    routes: tuple[str, ...] = ()
    owner: bool = True  # the request came with the key of the environment, not with a stored one


class Capture(Struct, frozen=True, kw_only=True):
    version: int = VERSION
    request_id: str
    dragoman_version: str = ""  # the version of this gateway
    time: str  # when the request began, ISO 8601
    duration_ms: float = 0.0
    client: str = ""
    client_protocol: str  # the client's protocol
    upstream_protocol: str = ""  # the upstream's
    route: str = ""
    requested_model: str = ""
    stream: bool = False
    passthrough: bool = False
    outcome: str = ""  # ok, or a kind of failure
    error_code: str | None = None
    interrupted_by: str = ""  # by what, after `seconds`
    guard_trips: tuple[str, ...] = ()  # what the grammar guard objected to
    cut_calls: tuple[str, ...] = ()  # names of tool calls that arrived cut
    request: ClientRequest
    upstream_requests: tuple[UpstreamRequest, ...] = ()
    events: tuple[TimedEvent, ...] = ()
    losses: tuple[Loss, ...] = ()
    request_losses: int = 0  # so many of them were known before the upstream was asked
    response: ClientResponse | None = None
    lookups: tuple[Lookup, ...] = ()
    settings: Settings = field(default_factory=Settings)
    truncated: tuple[str, ...] = ()  # which parts exceeded the bounds and are not whole
    masked: bool = False  # secrets were masked in bodies, so token counts that were estimated from them differ now

    @property
    def started_at(self) -> float:
        """Seconds since the epoch."""
        return datetime.fromisoformat(self.time).timestamp()

    @property
    def protocols(self) -> str:
        """The pair of protocols."""
        if not self.upstream_protocol:
            return self.client_protocol
        return (
            f"{self.client_protocol} = {self.upstream_protocol}"
            if self.passthrough
            else f"{self.client_protocol} > {self.upstream_protocol}"
        )


class Summary(Struct, frozen=True, kw_only=True):
    """What a list of captures shows of each."""

    request_id: str
    time: str
    duration_ms: float
    client: str
    protocols: str
    route: str
    outcome: str
    attempts: int
    status: int | None


def summarised(capture: Capture) -> Summary:
    return Summary(
        request_id=capture.request_id,
        time=capture.time,
        duration_ms=capture.duration_ms,
        client=capture.client,
        protocols=capture.protocols,
        route=capture.route or capture.requested_model,
        outcome=_verdict(capture),
        attempts=len(capture.upstream_requests),
        status=None if capture.response is None else capture.response.status,
    )


def _verdict(capture: Capture) -> str:
    """In one word; a reply that was cut or put right by force is not simply ok."""
    if capture.outcome != "ok":
        return capture.outcome
    return "guard" if capture.guard_trips else "cut" if capture.cut_calls else "ok"


def event_json(event: Event) -> str:
    try:
        return msgspec.json.encode(event).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON of ours does not write
        assert isinstance(event, Delta)
        mended = event.text.encode(errors="replace").decode()
        return msgspec.json.encode(Delta(event.block, mended)).decode()


def event_of(text: str) -> Event:
    return cast("Event", msgspec.json.decode(text, type=Event))


def utc_text(seconds_since_epoch: float) -> str:
    return datetime.fromtimestamp(seconds_since_epoch, UTC).isoformat(timespec="microseconds")

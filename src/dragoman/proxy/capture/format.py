"""The records of a capture: everything that one request received, sent and decided, to be read and replayed later."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import cast

import msgspec
from msgspec import Struct, field

from dragoman.translate.framing.redaction import Field
from dragoman.translate.hub.events import Delta, Event
from dragoman.translate.hub.loss import Loss
from dragoman.translate.hub.request import Json
from dragoman.translate.hub.server_tools import ToolOutcome

VERSION = 2
WHOLE, CLOSED = "whole", "closed"  # how a response ended: complete, or closed by the gateway
CANCELLED = "cancelled"  # why there is no response: the request was given up
NO_PROVIDER = ""  # in place of a provider's name: what is looked up elsewhere
BESIDE_FUNCTIONS = "beside functions: "  # before a tool: its backend where the upstream's own cannot be used
CLIENT_LEFT, STOPPED = "the client left", "the gateway stopped"


class LookupName(StrEnum):
    """What a request looked up; the values are part of the format, so that old captures replay."""

    AUTHORIZE = "authorize"
    ADDRESS = "address"
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
    PROMPTS = "prompts"  # what is remembered of the session's earlier requests
    REASONING = "rejected reasoning"  # what the provider has rejected in the session
    TOOL_RUN = "tool run"
    TOOL_TEXT = "tool text"
    STATE = "state"  # what a request refers to in the server's state, and how its reply becomes part of it
    NOT_STORED = "not stored"  # the store failed


class Chunk(Struct, frozen=True, array_like=True):
    at: float  # seconds since the request began
    data: bytes


GAP = Chunk(0.0, b"")  # in place of chunks that were dropped


class TimedEvent(Struct, frozen=True, array_like=True):
    """A hub event and its time."""

    at: float
    request: int  # index of the upstream request
    event: str  # as JSON


class Lookup(Struct, frozen=True, array_like=True):
    """A value that came from outside the request: a credential's headers, a model's window, a provider's options."""

    provider: str
    name: str
    value: Json


class CapturedToolRun(Struct, frozen=True):
    """A run of a server tool: the value of a TOOL_RUN lookup."""

    tool: str
    backend: str
    input: str  # the query, or the URL
    outcome: ToolOutcome | None  # None: it was given up, because of its time limit or with the request
    at: float  # seconds since the request began
    duration_s: float


class ClientRequest(Struct, frozen=True):
    """The client's request."""

    method: str
    path: str
    query: str
    headers: tuple[Field, ...]
    body: bytes


class UpstreamResponse(Struct, frozen=True):
    """The response of an upstream."""

    at: float  # when its head arrived
    status: int
    headers: tuple[Field, ...]
    chunks: tuple[Chunk, ...] = ()
    end: str = ""  # WHOLE, CLOSED, or the error
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
    error: str = ""  # why there is no response: the name of the error, a colon and its message


class ClientResponse(Struct, frozen=True):
    """The response to the client."""

    status: int
    headers: tuple[Field, ...]
    chunks: tuple[Chunk, ...]


class CapturedSettings(Struct, frozen=True):
    """The settings in force, without their secrets, for the replay."""

    server: Json = None
    retry: Json = None
    effort: Json = None
    providers: dict[str, Json] = {}  # that the request used
    quirks: dict[str, tuple[str, ...]] = {}  # learned, by provider
    known_models: dict[str, tuple[str, ...]] = {}  # by provider, if the requested model was not found
    routes: tuple[str, ...] = ()
    tools: dict[str, Json] = {}  # of web search and web fetch, without addresses and commands
    tool_backends: dict[str, dict[str, str]] = {}  # provider -> tool -> backend that the gateway ran it with
    owner: bool = True  # whether the request came with the key of the environment, not with a stored one
    default_thinking: str | int | None = None  # of the client's key


class Capture(Struct, frozen=True, kw_only=True):
    """One request with everything that happened to it."""

    version: int = VERSION
    request_id: str
    client_request_id: str = ""
    dragoman_version: str = ""
    time: str  # when the request began, ISO 8601
    duration_ms: float = 0.0
    client: str = ""
    key: str = ""  # the id of the client's key
    user: str = ""
    team: str = ""
    session: str = ""
    agent: str = ""
    parent_agent: str = ""
    tags: str = ""
    lease: str = ""
    cache_possible_tokens: int | None = None
    cache_miss: str | None = None
    cache_miss_path: str | None = None
    client_protocol: str
    upstream_protocol: str = ""
    route: str = ""
    requested_model: str = ""
    stream: bool = False
    passthrough: bool = False
    why: str = ""  # why the reply passed or was translated; empty: there was none, or the version did not say
    outcome: str = ""  # ok, or a kind of failure
    error_code: str | None = None
    interrupted_by: str = ""  # CLIENT_LEFT or STOPPED, after `duration_ms`
    guard_trips: tuple[str, ...] = ()  # what the grammar guard objected to
    cut_calls: tuple[str, ...] = ()  # names of tool calls that were cut off
    upstream_bytes: int = 0  # of the last upstream's stream, kept here or not
    upstream_chunks: int = 0
    request: ClientRequest
    upstream_requests: tuple[UpstreamRequest, ...] = ()
    events: tuple[TimedEvent, ...] = ()
    losses: tuple[Loss, ...] = ()
    request_losses: int = 0  # how many of them were known before the request was sent
    response: ClientResponse | None = None
    lookups: tuple[Lookup, ...] = ()
    settings: CapturedSettings = field(default_factory=CapturedSettings)
    truncated: tuple[str, ...] = ()  # parts that are not complete
    masked: bool = False  # whether secrets were masked in bodies: token counts estimated from them differ then

    @property
    def started_at(self) -> float:
        """Seconds since the epoch."""
        return datetime.fromisoformat(self.time).timestamp()

    @property
    def protocols(self) -> str:
        """Client and upstream protocol, with `=` for a passthrough and `>` for a translation."""
        if not self.upstream_protocol:
            return self.client_protocol
        return (
            f"{self.client_protocol} = {self.upstream_protocol}"
            if self.passthrough
            else f"{self.client_protocol} > {self.upstream_protocol}"
        )


def find_values(capture: Capture, name: LookupName, provider: str | None = None) -> list[Json]:
    """Return what was looked up under this name, for one provider or for all."""
    found = (each for each in capture.lookups if each.name == name.value and provider in (None, each.provider))
    return [each.value["value"] for each in found if isinstance(each.value, dict)]


class CaptureSummary(Struct, frozen=True, kw_only=True):
    """A line in the list of captures."""

    request_id: str
    client_request_id: str = ""
    time: str
    duration_ms: float
    client: str
    protocols: str
    route: str
    outcome: str
    attempts: int
    status: int | None
    upstream_bytes: int = 0
    upstream_chunks: int = 0

    def list_fields(self) -> dict[str, object]:
        """Return the fields for JSON; the two protocols also by their names in usage rows."""
        client, _, upstream = self.protocols.replace(" = ", " > ").partition(" > ")
        return {**msgspec.structs.asdict(self), "client_protocol": client, "upstream_protocol": upstream}


def summarize(capture: Capture) -> CaptureSummary:
    return CaptureSummary(
        request_id=capture.request_id,
        client_request_id=capture.client_request_id,
        time=capture.time,
        duration_ms=capture.duration_ms,
        client=capture.client,
        protocols=capture.protocols,
        route=capture.route or capture.requested_model,
        outcome=_short_outcome(capture),
        attempts=len(capture.upstream_requests),
        status=None if capture.response is None else capture.response.status,
        upstream_bytes=capture.upstream_bytes,
        upstream_chunks=capture.upstream_chunks,
    )


def _short_outcome(capture: Capture) -> str:
    """Return one word; a reply that was cut off or corrected is not `ok`."""
    if capture.outcome != "ok":
        return capture.outcome
    return "guard" if capture.guard_trips else "cut" if capture.cut_calls else "ok"


def event_json(event: Event) -> str:
    """Return an event as JSON."""
    try:
        return msgspec.json.encode(event).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which msgspec does not encode
        assert isinstance(event, Delta)
        valid = event.text.encode(errors="replace").decode()
        return msgspec.json.encode(Delta(event.block, valid)).decode()


def parse_event(text: str) -> Event:
    return cast("Event", msgspec.json.decode(text, type=Event))


def utc_text(seconds_since_epoch: float) -> str:
    return datetime.fromtimestamp(seconds_since_epoch, UTC).isoformat(timespec="microseconds")

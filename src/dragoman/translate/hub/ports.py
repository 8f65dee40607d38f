"""The records that describe a protocol, for clients and for upstreams, and the interfaces of its machines."""

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

import msgspec
from msgspec import Struct

from dragoman.translate.hub.caching import BlockGroup, BodyFields
from dragoman.translate.hub.events import Delta, Event, Started
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import ENVELOPE_PREFIX
from dragoman.translate.hub.profile import Profile, Target
from dragoman.translate.hub.request import Json, Part, Request, Tool
from dragoman.translate.hub.server_tools import ServerToolUse

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)


class Stage(typing.Protocol[In, Out]):
    """A machine that turns items into items. It never waits, and never raises because of its input."""

    def feed(self, item: In) -> Sequence[Out]: ...

    def finish(self) -> Iterable[Out]: ...


def feed_each(feed: Callable[[In], Sequence[Out]], items: Iterable[In]) -> list[Out]:
    """Return what a machine gives for these items. A loop costs less than chained iterators."""
    given: list[Out] = []
    for item in items:
        given += feed(item)
    return given


class RunStage:
    """A stage of events that a run passes unchanged most of the time, so that it looks at the whole run at once.

    A run is one or more deltas of one block that follow each other; `text` is their text.
    """

    __slots__ = ()

    def feed(self, event: Event) -> Sequence[Event]:
        return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def passes(self, block: int) -> bool:
        """Whether deltas of this block pass unchanged and change nothing here, until another event comes."""
        return False

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        """Return what feeding the deltas one by one would give; `run` itself if it passes unchanged."""
        return run if self.passes(run[0].block) else self.feed_each(run)

    def feed_each(self, run: Sequence[Delta]) -> list[Event]:
        return feed_each(self.feed, run)


Item = Event | list[Delta]  # an event, or a run


def split_runs(events: Iterable[Event]) -> list[Item]:
    """Gather deltas of one block that follow each other into runs; other events stand alone."""
    items: list[Item] = []
    run: list[Delta] = []
    block = None
    for event in events:
        if type(event) is not Delta:
            block = None
            items.append(event)
        elif event.block == block:
            run.append(event)
        else:
            block = event.block
            run = [event]
            items.append(run)
    return items


def flatten_runs(items: Iterable[Item]) -> list[Event]:
    """Return the events of which runs were gathered."""
    events: list[Event] = []
    for item in items:
        if isinstance(item, list):
            events += item
        else:
            events.append(item)
    return events


def join_run(run: Sequence[Delta]) -> str:
    """Return the text of a run."""
    return run[0].text if len(run) == 1 else "".join([event.text for event in run])


class Progress(Enum):
    """How far a reply is, as far as its protocol shows this before the end."""

    READING = "reading"
    WORKING_SILENTLY = "working silently"  # the model thinks, and may send nothing for minutes
    ACTING = (
        "acting"  # content has begun that has no event yet, or never: a tool that the upstream runs, unknown blocks
    )
    STOPPED = "stopped"  # the stop reason has arrived; the stream has still to end properly
    COMPLETE = "complete"  # likewise, and the reply is valid even if its stream does not end properly

    @property
    def has_stopped(self) -> bool:
        return self in (Progress.STOPPED, Progress.COMPLETE)


class Decoder(typing.Protocol):
    """A stage that reads an upstream's frames into events."""

    @property
    def progress(self) -> Progress: ...

    def feed(self, item: object) -> Sequence[Event]: ...

    def finish(self) -> Iterable[Event]: ...


Header = tuple[bytes, bytes]
OPERATION = "chat"  # OpenTelemetry's name for a request for a reply (gen_ai.operation.name)
EVENT_STREAM = b"text/event-stream; charset=utf-8"
GetHeader = Callable[[bytes], bytes | None]  # lower-case name -> value


class CallHead(Struct, frozen=True):
    """The fields of a request that routing needs, from the body or the path, depending on the protocol."""

    model: str
    stream: bool
    stream_type: bytes = EVENT_STREAM  # the content type of a streamed reply
    cache_key: str = ""  # by which OpenAI's clients name a session
    body_protocol: str = ""  # of a body that was sent to the wrong path


class Location(Struct, frozen=True):
    """Where an upstream takes a request."""

    path: str  # below the endpoint
    query: str = ""  # without its question mark


def locate_at(path: str) -> Callable[[str, bool], Location]:
    """Return the `locate` of an upstream that takes every request at one path."""
    location = Location(path)
    return lambda model, stream: location


class KeyPlaces(Struct, frozen=True):
    """Where the clients of a protocol send their key, besides `Authorization: Bearer`."""

    headers: tuple[bytes, ...] = ()  # lower-case names
    parameters: tuple[str, ...] = ()  # of the query


class VendorHeaders(Struct, frozen=True):
    """The headers of a protocol's own vendor that are not passed on like others; lower-case names."""

    account_choice: tuple[bytes, ...] = ()  # of a request: which organisation or project pays
    account_name: tuple[bytes, ...] = ()  # of a response: whose account it is
    reply_choice: tuple[bytes, ...] = ()  # of a request: what the reply depends on besides the body


class ListedModel(Struct, frozen=True):
    """A model as the list of models describes it."""

    id: str  # the name that clients ask for
    name: str = ""  # for people
    created: int = 0  # seconds since the epoch
    owned_by: str = ""
    max_input: int | None = None  # tokens
    max_output: int | None = None
    credit_rate: float | None = None  # by which the plan's credits are multiplied for this model
    capabilities: dict[str, object] | None = None  # as Anthropic's list describes them
    description: str = ""  # for people, in a list of which they choose

    def for_openai(self) -> dict[str, object]:
        """Return the model as OpenAI's lists describe it."""
        owner = self.owned_by or "dragoman"
        rate = {} if self.credit_rate is None else {"credit_rate": self.credit_rate}
        return {"id": self.id, "object": "model", "created": self.created, "owned_by": owner, **rate}

    def render_for_openai(self) -> bytes:
        return msgspec.json.encode(self.for_openai())


class ModelList(Struct, frozen=True):
    """The shape in which a protocol's clients read the list of models."""

    render: Callable[[Sequence[ListedModel], Mapping[str, str]], bytes]  # all models, the query's parameters
    render_one: Callable[[ListedModel], bytes]
    is_requested: Callable[[GetHeader, Mapping[str, str]], bool]  # by headers or query, on the path that all share
    paths: tuple[str, ...] = ()  # of its own, besides that one


class KeptItem(Struct, frozen=True):
    """An item of a reply as the client was shown it, and what the client was not shown.

    That is opaque reasoning, or what a tool of the gateway returned.
    """

    id: str
    body: bytes  # JSON
    hidden: str | None = None


class StoredReply(Struct, frozen=True):
    """What is kept of a complete reply."""

    status: str
    head: bytes  # JSON: the fields of this reply alone
    settings: bytes  # JSON: the fields that the request set, which are often those of other requests too
    items: tuple[KeptItem, ...]


class ReplyState(Struct, frozen=True):
    """The place of a reply in the server's state, for protocols that have such a state."""

    id: str  # of the reply
    fields: dict[str, Json]  # what the reply says about the state, `store` last
    created: int  # seconds since the epoch
    hides_opaque: bool  # the client did not ask for opaque reasoning, because it is kept for it
    take: Callable[[StoredReply], None]  # called with the complete reply, before its last event is returned
    holds: bool = False  # later turns get the reply from here
    announced: int = 0  # events that were sent when the reply was queued: it is created, and goes on after them


class ReplyContext(Struct, frozen=True):
    """What an encoder needs to know about the request, with the clock and the source of ids to use."""

    request: Request
    model: str  # the name in the client's request
    created: int  # seconds since the epoch
    new_id: Callable[[str], str]  # prefix -> a new id
    now: Callable[[], float]  # seconds since the epoch
    responses_done: bool = True  # whether a Responses stream ends with [DONE]
    stream_type: bytes = EVENT_STREAM  # of this reply, for protocols with several framings of a stream
    state: ReplyState | None = None  # None: the reply is not kept, and continues nothing that is
    input_tokens: int = 0  # of the request, estimated, for protocols whose streams begin with them


class Issuer(Struct, frozen=True):
    """The upstream of a reply. The decoder adds it to opaque reasoning."""

    name: str
    model: str
    window: int | None = None  # the model's context window in tokens, for upstreams that report usage as a share of it
    options: object = None  # settings that only this provider's protocol uses
    quirks: frozenset[str] = frozenset()  # oddities of a compatible server, by name
    answers: int = 1  # how many the request asks for
    tools: tuple[Tool, ...] = ()  # as they were sent; none where a client's bytes pass unchanged


class ErrorResponse(Struct, frozen=True):
    """An HTTP error response."""

    status: int
    body: bytes


class ToolLimits(Struct, frozen=True):
    """The tools that a protocol can express. `translate/passes/adapt_tools.py` adapts a request to them."""

    custom: bool
    namespaces: bool
    name_max: int
    letter_first: bool = False  # a name must begin with a letter


class _ErrorMessage(Struct):
    message: str


class ErrorShape(Struct):
    """The minimum that an SDK needs to read an error body."""

    error: _ErrorMessage


# What the two sides of a protocol do.
Parse = Callable[[bytes, Ledger], Request]  # raises RequestError
MakeEncoder = Callable[[ReplyContext, Ledger], Stage[Event, bytes]]  # one item = one whole SSE event
EncodeWhole = Callable[[Iterable[Event], ReplyContext, Ledger], bytes]  # raises RequestError on Failed
ReadToolUses = Callable[[Sequence[Part]], dict[int, ServerToolUse | None]]
Build = Callable[[Request, Target, Ledger], bytes]  # raises RequestError
MakeDecoder = Callable[[Issuer, Ledger], Decoder]
MakeFramer = Callable[[], Stage[bytes, object]]
DecodeWhole = Callable[[bytes, Issuer, Ledger], list[Event]]
ReadError = Callable[[int, Mapping[bytes, bytes], bytes], Failure]  # status, lower-case headers, body


class TokenCounting(Struct, frozen=True):
    """The endpoint that counts the tokens of a request without a reply."""

    paths: tuple[str, ...]  # where clients request it, as in `Client.paths`
    locate: Callable[[str], str]  # the path of an upstream's request -> where the upstream counts it
    parse: Parse
    render_count: Callable[[int], bytes]
    read_count: Callable[[bytes], int | None]  # an upstream's answer; None if it is no count


class UpstreamCounting(Struct, frozen=True):
    """How an upstream counts the tokens of a request that was built for it."""

    locate: Callable[[str], str]  # the URL of the request, without its query -> where it is counted
    wrap: Callable[[bytes, str, frozenset[str]], bytes]  # the request's body, the model, quirks -> what is posted
    read_count: Callable[[bytes], int | None]  # None if the answer is no count


class Client(Struct, frozen=True, kw_only=True):
    """The client side of a protocol."""

    paths: tuple[str, ...]  # where requests are posted, without /v1; `{model}` stands for any text
    read_call: Callable[[str, str, bytes], CallHead]  # path, query, body; raises RequestError
    parse: Parse  # a model or mode of the path is set afterwards
    encoder: MakeEncoder
    encode_whole: EncodeWhole
    render_error: Callable[[Failure, str], ErrorResponse]  # failure, request id -> error body
    # The error frames to append to a stream of this content type, of which `int` frames were already sent.
    render_stream_error: Callable[[Failure, Started | None, int, bytes], bytes]
    serial_blocks: bool  # blocks may not interleave
    keep_alive: bytes  # means the same in every reply; nothing: none is sent before the first token
    # The keep-alive of a reply that has begun, made by its encoder, where it repeats the ids of the reply.
    encoder_keep_alive: Callable[[Stage[Event, bytes]], bytes] | None = None
    is_keep_alive: Callable[[bytes], bool] = lambda written: False  # whether a write was one of those
    # What follows the error frames in a write of its own, by failure and content type of the stream. An encoder returns
    # it from `finish`.
    repeat_stream_error: Callable[[Failure, bytes], bytes] = lambda failure, stream_type: b""
    counting: TokenCounting | None = None
    prefixes: tuple[str, ...] = ()  # unknown paths below these get this protocol's error body
    matches_headers: Callable[[GetHeader], bool] = lambda header: (
        False
    )  # where the path is shared with another protocol
    # Earlier uses of server tools among a turn's parts, by index; None: part of a use that stands elsewhere.
    read_tool_uses: ReadToolUses = lambda parts: {}
    counts_input_first: bool = False  # its streams begin with the tokens of the request
    knows_pause: bool = False  # its replies may end with a pause, after which the client itself continues
    cites_apart: bool = False  # a citation belongs to a whole text block, so that cited text is one of its own
    arguments_are_text: bool = False  # in its replies; whoever runs a call sees whether they are valid JSON
    has_conflicts: bool = True  # 409 means that a request contradicts an earlier one; else that is a bad request
    id_header: bytes = b"x-request-id"  # the response header that its SDK reads the request id from
    envelope_start: bytes = b'"' + ENVELOPE_PREFIX.encode()  # how a JSON string begins that is an envelope of ours
    error_shape: type[Struct] = ErrorShape  # an upstream's error body of this shape is passed on unchanged
    end_markers: tuple[bytes, ...] = ()  # every complete stream contains one of these
    # Where a body limits the tokens of its reply; a limit of ours is written at the first place if there is none.
    output_limits: tuple[tuple[str, ...], ...] = ()
    # The header of a unit (requests, tokens) and field (limit, remaining, reset) of what is left; None: there is none.
    rate_header: Callable[[str, str], str] | None = None
    rates_reset_at: bool = False  # its reset is a time, not a duration


class PromptReader(Struct, frozen=True):
    """How the vendor of a protocol reads the prompt of a body, and how long it caches one."""

    # The blocks of a body in the vendor's order: tools, system prompt, settings that change what follows, messages.
    # Raises JSON_ERRORS for what is no such body.
    list_groups: Callable[[BodyFields], list[BlockGroup]]
    find_life_s: Callable[[BodyFields, Profile], float]  # for how long the cache keeps what a body writes
    # Which blocks of a body are marked, where the vendor caches at marks only; None: it needs none.
    list_marks: Callable[[bytes], list[int]] | None = None


def _no_headers(request: Request) -> tuple[Header, ...]:
    return ()


class Upstream(Struct, frozen=True, kw_only=True):
    """The upstream side of a protocol."""

    locate: Callable[[str, bool], Location]  # model, stream -> where it takes the request
    put_model: Callable[[bytes, str], bytes]  # a client's body with another model; the body itself if it names none
    build: Build
    decoder: MakeDecoder  # reads the frames of `framer`
    framer: MakeFramer
    decode_whole: DecodeWhole
    read_error: ReadError
    tool_limits: ToolLimits
    array_framer: MakeFramer | None = None  # of a stream that is one JSON array
    needs_inline: Callable[[Part], bool] = lambda part: False  # linked media to fetch and send in the body
    # Like `decode_whole`, but faster: the content of blocks may be missing.
    decode_outline: DecodeWhole | None = None
    reads_documents: bool = False  # a tool result may hold a PDF
    counting: UpstreamCounting | None = None  # None: only a client of its own protocol is counted for
    continues: bool = False  # a reply may end with a token, with which the same request gets the rest
    always_streams: bool = False  # even if the client wants a whole reply
    required_headers: tuple[Header, ...] = ()  # without these it rejects every request
    request_headers: Callable[[Request], tuple[Header, ...]] = _no_headers  # in addition, for a translated request
    # The figures of a rejected request, for upstreams whose messages say little and repeat nothing of it.
    describe_request: Callable[[bytes], str] | None = None
    models_query: str = ""  # of GET /models
    prompts: PromptReader | None = None  # None: it caches none
    options_type: Callable[[], type[Struct]] | None = None  # of `Target.options`, where it has any


class Protocol(Struct, frozen=True):
    """Everything about a wire language that the rest of the gateway needs to know."""

    name: str
    client: Client | None = None
    upstream: Upstream | None = None
    models: ModelList | None = None
    keys: KeyPlaces = KeyPlaces()
    vendor_headers: VendorHeaders = VendorHeaders()
    operation: str = OPERATION

"""The records that a protocol consists of, for clients and for upstreams: data and functions, no base classes."""

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from msgspec import Struct

from dragoman.hub.events import Event, Started
from dragoman.hub.failure import Failure
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import Profile, Target
from dragoman.hub.request import Part, Request

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)


class Stage(typing.Protocol[In, Out]):
    def feed(self, item: In) -> Sequence[Out]: ...

    def finish(self) -> Iterable[Out]: ...


class Progress(Enum):
    """How far a reply has come, as far as its protocol tells before the end."""

    READING = "reading"
    WORKING_SILENTLY = "working silently"  # the model thinks or searches, with nothing to show for it for minutes
    STOPPED = "stopped"  # the model has said why it stopped; the stream has still to end properly
    COMPLETE = "complete"  # the same, and the reply counts even if its stream does not end properly

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
GetHeader = Callable[[bytes], bytes | None]  # lower-case name -> value


class CallHead(Struct, frozen=True):
    """What routing needs of a request, wherever its protocol writes it: in the body or in the path."""

    model: str
    stream: bool


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


class ListedModel(Struct, frozen=True):
    """A model as the list of models describes it."""

    id: str  # the name that clients ask for
    name: str = ""  # for people
    created: int = 0  # seconds since the epoch
    owned_by: str = ""
    max_input: int | None = None  # tokens
    max_output: int | None = None


class ModelList(Struct, frozen=True):
    """The shape in which a protocol's clients read the list of models."""

    render: Callable[[Sequence[ListedModel], Mapping[str, str]], bytes]  # all models, the query's parameters
    render_one: Callable[[ListedModel], bytes]
    is_requested: Callable[[GetHeader, Mapping[str, str]], bool]  # by headers or query, on the path that all share
    paths: tuple[str, ...] = ()  # of its own, besides that one


class ReplyContext(Struct, frozen=True):
    """What an encoder must know of the request that it answers. Clock and chance are handed in."""

    request: Request
    model: str  # the name the client asked for
    created: int  # seconds since the epoch
    new_id: Callable[[str], str]  # prefix -> a fresh id
    now: Callable[[], float]  # seconds since the epoch
    responses_done: bool = True  # whether a Responses stream ends with [DONE]


class Issuer(Struct, frozen=True):
    """Who answers: stamped on opaque reasoning by the decoder."""

    name: str
    model: str
    window: int | None = None  # the model's context in tokens, for upstreams that tell usage as a share of it
    options: object = None  # what only this provider's own protocol needs to know
    quirks: frozenset[str] = frozenset()  # oddities of a compatible server, by name


class ErrorResponse(Struct, frozen=True):
    status: int
    body: bytes


class ToolLimits(Struct, frozen=True):
    """What a protocol can say about tools; passes/adapt_tools fits a request to it."""

    custom: bool
    namespaces: bool
    name_max: int
    letter_first: bool = False  # a name must begin with a letter


class _ErrorMessage(Struct):
    message: str


class ErrorShape(Struct):
    """The least that an error body must be for an SDK to read it."""

    error: _ErrorMessage


class TokenCounting(Struct, frozen=True):
    """How the tokens of a request are counted without answering it."""

    paths: tuple[str, ...]  # where clients ask for it, as in `Client.paths`
    locate: Callable[[str], str]  # the path of an upstream's request -> where the upstream counts it
    parse: Callable[[bytes, Ledger], Request]  # raises RequestError
    render_count: Callable[[int], bytes]
    read_count: Callable[[bytes], int | None]  # an upstream's answer; None if it is no count


class Client(Struct, frozen=True):
    """The side that faces clients."""

    paths: tuple[str, ...]  # where requests are posted, without /v1; `{model}` stands for any text
    read_call: Callable[[str, str, bytes], CallHead]  # path, query, body; raises RequestError
    parse: Callable[[bytes, Ledger], Request]  # raises RequestError; a model or mode of the path is set afterwards
    encoder: Callable[[ReplyContext, Ledger], Stage[Event, bytes]]  # one item = one whole SSE event
    encode_whole: Callable[[Iterable[Event], ReplyContext, Ledger], bytes]  # raises RequestError on Failed
    render_error: Callable[[Failure, str], ErrorResponse]  # failure, request id -> error body
    render_stream_error: Callable[
        [Failure, Started | None, int], bytes
    ]  # error frames to append; int = frames already sent
    serial_blocks: bool  # blocks may not interleave
    keep_alive: bytes
    counting: TokenCounting | None = None
    prefixes: tuple[str, ...] = ()  # below these, unknown paths too are refused in this protocol's shape
    matches_headers: Callable[[GetHeader], bool] = lambda header: False  # by headers, where the path does not say it
    body_protocol: Callable[[bytes], str | None] = lambda body: None  # another one that the body is written in
    id_header: bytes = b"x-request-id"  # where its SDK looks for the request's id
    error_shape: type[Struct] = ErrorShape  # of its error bodies: one that fits passes as the upstream wrote it
    end_markers: tuple[bytes, ...] = ()  # one of these stands in a stream that has ended, also where we cannot read it


def _no_headers(request: Request) -> tuple[Header, ...]:
    return ()


class Upstream(Struct, frozen=True):
    """The side that faces upstreams."""

    locate: Callable[[str, bool], Location]  # model, stream -> where it takes the request
    put_model: Callable[[bytes, str], bytes]  # a client's body with another model; the body itself if it names none
    build: Callable[[Request, Target, Ledger], bytes]  # raises RequestError
    decoder: Callable[[Issuer, Ledger], Decoder]  # takes what `framer` gives
    framer: Callable[[], Stage[bytes, object]]
    decode_whole: Callable[[bytes, Issuer, Ledger], list[Event]]
    read_error: Callable[[int, Mapping[bytes, bytes], bytes], Failure]  # status, lower-case headers, body
    tool_limits: ToolLimits
    needs_inline: Callable[[Part], bool] = lambda part: False  # linked media that must be fetched and sent in the body
    decode_outline: Callable[[bytes, Issuer, Ledger], list[Event]] | None = (
        None  # `whole`, perhaps without what blocks hold
    )
    always_streams: bool = False  # also to clients who ask for the whole
    required_headers: tuple[Header, ...] = ()  # without which it refuses everything
    request_headers: Callable[[Request], tuple[Header, ...]] = _no_headers  # besides those, for one that was built
    models_query: str = ""  # of GET /models
    accepts: Callable[[Profile, bytes], bool] = lambda profile, body: True  # a client's body, for such a model


class Protocol(Struct, frozen=True):
    """Everything about a wire language that the rest of the gateway needs to know."""

    name: str
    client: Client | None = None
    upstream: Upstream | None = None
    models: ModelList | None = None
    keys: KeyPlaces = KeyPlaces()
    operation: str = "chat"  # OpenTelemetry's name for what its clients ask for (gen_ai.operation.name)

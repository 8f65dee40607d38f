"""A small protocol whose model and mode stand in the path, for tests of what a protocol's record can say.

A request is `{"ask": text}`, a whole reply `{"text": text}`, a stream one `data: {"text": …}` for each piece and
`data: {"end": true}` at its end. Paths and keys are those of Gemini.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

import msgspec

from dragoman.translate.framing.sse import Frame, SseFramer, encode_event
from dragoman.translate.hub.events import Closed, Delta, Ended, Event, Failed, Opened, Started, Stop, TextBlock, collect
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import (
    EVENT_STREAM,
    CallHead,
    Client,
    ErrorResponse,
    Issuer,
    KeyPlaces,
    ListedModel,
    Location,
    ModelList,
    Progress,
    Protocol,
    ReplyContext,
    TokenCounting,
    ToolLimits,
    Upstream,
)
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Request, Role, Text, Turn

NAME = "gemini"
ARRAY = b"application/json"  # a stream without alt=sse is one JSON array
GENERATE, STREAM, COUNT = ":generateContent", ":streamGenerateContent", ":countTokens"
VERSIONS = ("", "/v1beta")  # /v1 is left out of plain paths
_CALL = re.compile(r"/models/(.+)(:\w+)$")
_STATUSES = {Kind.BAD_REQUEST: 400, Kind.AUTH: 401, Kind.NOT_FOUND: 404}

_encode = msgspec.json.encode


def read_call(path: str, query: str, body: bytes) -> CallHead:
    found = _CALL.search(path)
    assert found is not None
    stream = found[2] == STREAM
    return CallHead(unquote(found[1]), stream, EVENT_STREAM if "alt=sse" in query else ARRAY)


def parse(body: bytes, ledger: Ledger) -> Request:
    raw = msgspec.json.decode(body, type=dict[str, object])
    text = raw.get("ask")
    if not isinstance(text, str):
        raise BadRequest("/ask", "ask must be a string.")
    return Request(protocol=NAME, model="", turns=(Turn(Role.USER, (Text(text, "/ask"),), "/ask"),), raw=raw)


class Encoder:
    def __init__(self, context: ReplyContext, ledger: Ledger) -> None:
        self._model = context.model
        self._is_array = context.stream_type == ARRAY
        self._separator = b"["

    def feed(self, event: Event) -> Sequence[bytes]:
        match event:
            case Delta(text=text):
                return (self._frame(_encode({"text": text, "model": self._model})),)
            case Ended():
                return (self._frame(b'{"end":true}') + (b"]" if self._is_array else b""),)
            case Failed(failure=failure):
                return (self._frame(render(failure, "").body),)
        return ()

    def _frame(self, data: bytes) -> bytes:
        if not self._is_array:
            return encode_event(data)
        separator, self._separator = self._separator, b","
        return separator + data

    def finish(self) -> Sequence[bytes]:
        return ()


def encode_whole(events: Iterable[Event], context: ReplyContext, ledger: Ledger) -> bytes:
    reply = collect(events)
    if isinstance(reply.end, Failed):
        raise RequestError(reply.end.failure)
    return _encode({"text": "".join(piece.text for piece in reply.pieces), "model": context.model})


def render(failure: Failure, request_id: str) -> ErrorResponse:
    status = _STATUSES.get(failure.kind, 502)
    error = {"code": status, "message": failure.message, "status": failure.kind.name}
    return ErrorResponse(status, _encode({"error": error}))


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    parts = [part for turn in request.turns for part in turn.parts]
    return _encode({"ask": " ".join(part.text for part in parts if isinstance(part, Text))})


class Decoder:
    progress = Progress.READING

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._model = issuer.model
        self._started = self._over = False

    def feed(self, item: object) -> Sequence[Event]:
        assert isinstance(item, Frame)
        chunk = msgspec.json.decode(item.data, type=dict[str, object])
        opened: list[Event] = []
        if not self._started:
            self._started = True
            opened = [Started("", self._model), Opened(0, TextBlock())]
        if "end" in chunk:
            self._over = True
            return [*opened, Closed(0), Ended(Stop.END)]
        return [*opened, Delta(0, str(chunk["text"]))]

    def finish(self) -> Sequence[Event]:
        return () if self._over else (Failed(Failure(Kind.TRUNCATED, "no end")),)


def decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    decoder = Decoder(issuer, ledger)
    return [*decoder.feed(Frame("", body)), *decoder.feed(Frame("", b'{"end":true}'))]


def read_error(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    return Failure(Kind.UPSTREAM, f"HTTP {status}", status=status)


def read_count(body: bytes) -> int | None:
    tokens = msgspec.json.decode(body, type=dict[str, object]).get("totalTokens")
    return tokens if isinstance(tokens, int) else None


def locate(model: str, stream: bool) -> Location:
    return Location(f"/models/{model}{STREAM}", "alt=sse") if stream else Location(f"/models/{model}{GENERATE}")


def render_models(models: Sequence[ListedModel], query: Mapping[str, str]) -> bytes:
    return _encode({"models": [f"models/{model.id}" for model in models]})


PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        paths=tuple(f"{version}/models/{{model}}{verb}" for version in VERSIONS for verb in (GENERATE, STREAM)),
        prefixes=("/v1beta/",),
        read_call=read_call,
        parse=parse,
        encoder=Encoder,
        encode_whole=encode_whole,
        render_error=render,
        render_stream_error=lambda failure, started, frames, kind: encode_event(render(failure, "").body),
        serial_blocks=True,
        keep_alive=b"",
        counting=TokenCounting(
            paths=tuple(f"{version}/models/{{model}}{COUNT}" for version in VERSIONS),
            locate=lambda path: path.rpartition(":")[0] + COUNT,
            parse=parse,
            render_count=lambda tokens: _encode({"totalTokens": tokens}),
            read_count=read_count,
        ),
    ),
    upstream=Upstream(
        locate=locate,
        put_model=lambda body, model: body,
        build=build,
        decoder=Decoder,
        framer=SseFramer,
        decode_whole=decode_whole,
        read_error=read_error,
        tool_limits=ToolLimits(custom=False, namespaces=False, name_max=64),
    ),
    models=ModelList(
        render_models,
        lambda model: _encode({"name": f"models/{model.id}"}),
        is_requested=lambda header, query: header(b"x-goog-api-key") is not None,
        paths=("/v1beta/models",),
    ),
    keys=KeyPlaces(headers=(b"x-goog-api-key",), parameters=("key",)),
    operation="generate_content",
)

"""Echo: a provider without an address or a key, whose models repeat the input."""

import asyncio
import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from dragoman.config.settings import ProviderConfig
from dragoman.net.bodies import ResponseInChunks
from dragoman.net.client import ConnectionLost, DialOptions, OutgoingRequest, UpstreamTimeout
from dragoman.net.headers import JSON, Header, Headers
from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.hub.events import (
    Block,
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    OpaqueAdded,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.request import Custom, Request, Shape
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.echo.build import read_request
from dragoman.upstreams import Surroundings
from dragoman.upstreams.echo.request import (
    RequestedCall,
    count_input_words,
    last_text,
    make_example,
    requested_calls,
    requests_thinking,
    results_text,
)
from dragoman.upstreams.provider import (
    Auth,
    Catalogue,
    ModelInfo,
    Provider,
    UnsignedRequest,
)
from dragoman.upstreams.section import read_endpoint, read_secrets

MODELS: tuple[tuple[str, str], ...] = (
    ("echo", "Repeats the last user text word by word; says `call NAME {json}`: calls that tool"),
    ("echo-think", "Thinks before it repeats"),
)

ISSUER = "echo"

_WORD = re.compile(r"\S+\s*|\s+")


def split_words(text: str) -> list[str]:
    """Split text into words with the whitespace after them; joined, they are the text again."""
    return _WORD.findall(text)


class _ReplyBuilder:
    """Writes blocks word by word, up to the token limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._block = -1
        self.events: list[Event] = []
        self.spent = 0
        self.cut = False

    def add_block(self, what: Block, text: str, opaque: Opaque | None = None) -> None:
        self.cut |= self._limit is not None and self.spent >= self._limit
        if self.cut:
            return
        self._block += 1
        self.events.append(Opened(self._block, what))
        for word in split_words(text):
            if self._limit is not None and self.spent >= self._limit:
                self.cut = True
                break
            self.events.append(Delta(self._block, word))
            self.spent += 1
        if opaque is not None and not self.cut:
            self.events.append(OpaqueAdded(self._block, opaque))
        self.events.append(Closed(self._block))


def write_reply(request: Request, make_id: Callable[[str], str]) -> tuple[Event, ...]:
    """Return the events of the reply to a request; `make_id` makes an id from a prefix."""
    last = last_text(request)
    builder = _ReplyBuilder(request.max_tokens)
    thought = 0
    if requests_thinking(request):
        thoughts = f"The user said: {last}"
        signature = base64.b64encode(hashlib.sha256(thoughts.encode()).digest()).decode()
        hidden = request.reasoning is not None and request.reasoning.show == "omitted"
        opaque = Opaque(ISSUER, OpaqueForm.SIGNATURE, signature, request.model)
        builder.add_block(ThinkingBlock(), "" if hidden else thoughts, opaque)
        thought = builder.spent
    calls = requested_calls(request, last)
    sequence = None
    if calls:
        for call in calls:
            builder.add_block(_call_block(call, make_id), call.arguments)
    else:
        text, sequence = _cut_at_stop(_answer_text(request, last), request.sampling.stop)
        if text:
            builder.add_block(TextBlock(), text)
    input_words = count_input_words(request)
    usage = Usage(input=input_words, output=builder.spent, reasoning=thought)
    end = _make_end(builder.cut, sequence, called=bool(calls))
    return (
        Started(make_id("echo_"), request.model, Usage(input=input_words)),
        *builder.events,
        UsageReported(usage),
        end,
    )


def _answer_text(request: Request, last: str) -> str:
    returned = results_text(request)
    text = returned if returned is not None else last or "Nothing was said."
    if request.format is None or request.format.shape is Shape.TEXT or isinstance(parse_or(text, object, None), dict):
        return text
    made = make_example(request.format.schema) if request.format.shape is Shape.SCHEMA else {"echo": text}
    return msgspec.json.encode(made).decode()


def _cut_at_stop(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Return the text up to the first stop sequence, and that sequence."""
    found = [(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    if not found:
        return text, None
    at, stop = min(found)
    return text[:at], stop


def _call_block(call: RequestedCall, make_id: Callable[[str], str]) -> CallBlock:
    custom = isinstance(call.tool, Custom)
    return CallBlock(make_id("call_"), call.tool.name, custom=custom, namespace=call.tool.namespace)


def _make_end(cut: bool, sequence: str | None, *, called: bool) -> Ended:
    if cut:
        return Ended(Stop.LENGTH)
    if sequence is not None:
        return Ended(Stop.STOP_SEQUENCE, sequence)
    return Ended(Stop.TOOL if called else Stop.END)


WORD_S = 0.02  # slow enough for a person to see it stream

_KNOWN = frozenset(name for name, _ in MODELS)
_LINES = (b"content-type", b"application/x-ndjson")

Piece = tuple[float, bytes]  # seconds to wait, then the bytes


class EchoResponse(ResponseInChunks):
    """A response whose pieces come with delays; it is used like one from the network."""

    __slots__ = ("_closed", "_due", "_next", "_pieces", "headers", "status")
    where = "echo"

    def __init__(self, status: int, headers: list[Header], pieces: Iterator[Piece]) -> None:
        self.status = status
        self.headers = Headers(headers)
        self._pieces = pieces
        self._next: bytes | None = None
        self._due = 0.0
        self._closed = False

    async def chunk(self, timeout_s: float) -> bytes:
        """Return the next chunk, b"" at the end. After UpstreamTimeout it may be called again."""
        if self._closed:
            raise ConnectionLost("echo: closed by us", sent=True, received=True)
        now = asyncio.get_running_loop().time()
        if self._next is None:
            wait_s, self._next = next(self._pieces, (0.0, b""))
            self._due = now + wait_s
        if self._due - now > timeout_s:
            await asyncio.sleep(timeout_s)
            raise UpstreamTimeout("idle", "echo: no data within the time-out")
        await asyncio.sleep(max(0.0, self._due - now))
        piece, self._next = self._next, None
        return piece

    def close(self) -> None:
        self._closed = True


class Echo:
    """Handles requests in the native protocol; `word_s` is the delay of each word of a stream."""

    def __init__(self, word_s: float = WORD_S) -> None:
        self._word_s = word_s

    async def send(
        self, out: OutgoingRequest, dial: DialOptions | None = None, *, head_timeout_s: float = 0.0
    ) -> EchoResponse:
        try:
            request = read_request(out.body)
        except (msgspec.DecodeError, RecursionError):
            return _make_error(400, Failure(Kind.BAD_REQUEST, "echo cannot parse this request"))
        if request.model not in _KNOWN:
            return _make_error(
                404, Failure(Kind.NOT_FOUND, f"echo has no model {request.model!r}", code="model_not_found")
            )
        events = write_reply(request, _make_id)
        if request.stream:
            return EchoResponse(200, [_LINES], _stream_pieces(events, self._word_s))
        return EchoResponse(200, [JSON], iter([(0.0, msgspec.json.encode(events))]))


def _make_error(status: int, failure: Failure) -> EchoResponse:
    return EchoResponse(status, [JSON], iter([(0.0, msgspec.json.encode(failure))]))


def _stream_pieces(events: tuple[Event, ...], word_s: float) -> Iterator[Piece]:
    """Yield one piece for each word, with the events before it."""
    lines: list[bytes] = []
    for event in events:
        lines.append(msgspec.json.encode(event) + b"\n")
        if isinstance(event, Delta):
            yield word_s, b"".join(lines)
            lines.clear()
    yield 0.0, b"".join(lines)


def _make_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def make_echo(config: ProviderConfig, around: Surroundings) -> Provider:
    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        return ()

    models = tuple(ModelInfo(name, text, owned_by="dragoman") for name, text in MODELS)
    return Provider(
        name=config.name,
        kind=config.kind,
        issuer=config.name,
        endpoint=replace(
            read_endpoint(config, Echo().send, around.environ), url="http://echo.invalid", protocols=("echo",)
        ),
        auth=Auth(authorize, secrets=read_secrets(config, around.environ)),
        catalogue=Catalogue(models=models, has_list=False),
    )

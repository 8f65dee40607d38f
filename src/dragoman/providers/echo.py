"""Echo: a provider without an address or a key, whose models repeat the input or fail on request."""

import asyncio
import base64
import hashlib
import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

import msgspec
from msgspec import Struct

from dragoman.config.settings import ProviderConfig
from dragoman.hub.events import (
    Block,
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.request import Custom, Request, Shape
from dragoman.hub.usage import Usage
from dragoman.net.bodies import ResponseInChunks
from dragoman.net.client import ConnectionLost, DialOptions, OutgoingRequest, UpstreamTimeout
from dragoman.net.headers import JSON, Header, Headers
from dragoman.providers.echo_request import (
    RequestedCall,
    count_input_words,
    last_text,
    make_example,
    requested_calls,
    requests_thinking,
    results_text,
)
from dragoman.providers.provider import (
    Auth,
    Catalogue,
    Endpoint,
    FirstTokenWait,
    ModelInfo,
    Provider,
    SendRequest,
    UnsignedRequest,
)
from dragoman.providers.section import read_dial, read_headers, read_secrets


class Pace(Struct, frozen=True):
    """The delay before the first word of a stream, and before every word."""

    first_s: float = 0.0
    word_s: float = 0.0


MODELS: tuple[tuple[str, str], ...] = (
    ("echo", "Repeats the last user text word by word; says `call NAME {json}`: calls that tool"),
    ("echo-think", "Thinks before it repeats"),
    ("slow", "Waits two seconds, then takes a quarter of a second for each word"),
    ("error-400", "Refuses the request as bad"),
    ("error-401", "Refuses the gateway's credential"),
    ("error-403", "Forbids the model"),
    ("error-404", "Does not know the model"),
    ("error-413", "Finds the request too large"),
    ("error-429", "Limits the rate, to be tried again in seven seconds"),
    ("error-500", "Fails on its own account"),
    ("error-529", "Is overloaded"),
    ("error-context", "Finds the prompt too long for its context window"),
    ("error-mid", "Fails in the middle of its reply"),
    ("error-cut", "Ends in the middle of its reply without saying so"),
    ("error-stall", "Sends no more data in the middle of its reply"),
)

LISTED = ("echo", "echo-think")  # the others are for tests: requested by full name, such as `echo/error-429`

# Longer than the gateway waits, so that the client receives it.
RETRY_AFTER_S = 7.0

REFUSALS: dict[str, tuple[int, Failure]] = {
    "error-400": (
        400,
        Failure(Kind.BAD_REQUEST, "echo: this model always rejects the request", code="echo_bad_request"),
    ),
    "error-401": (401, Failure(Kind.CREDENTIAL, "echo: this model always rejects the credential")),
    "error-403": (403, Failure(Kind.FORBIDDEN, "echo: this model is always forbidden")),
    "error-404": (404, Failure(Kind.NOT_FOUND, "echo: this model is never found")),
    "error-413": (413, Failure(Kind.TOO_LARGE, "echo: every request to this model is too large")),
    "error-429": (
        429,
        Failure(Kind.RATE_LIMITED, "echo: this model is always rate limited", retry_after=RETRY_AFTER_S),
    ),
    "error-500": (500, Failure(Kind.UPSTREAM, "echo: this model always fails")),
    "error-529": (529, Failure(Kind.OVERLOADED, "echo: this model is always overloaded")),
    "error-context": (400, Failure(Kind.CONTEXT_TOO_LONG, "prompt is too long: every prompt is, for this model")),
}

FAILS_MIDWAY = Failure(Kind.OVERLOADED, "echo: this model fails in the middle of every reply")
SLOW = Pace(first_s=2.0, word_s=0.25)


ISSUER = "echo"

_WORD = re.compile(r"\S+\s*|\s+")


class Finish(Enum):
    """How a reply ends after the last event."""

    END = "end"
    SILENCE = "silence"  # the connection stays open without data


class Script(Struct, frozen=True):
    events: tuple[Event, ...]
    finish: Finish = Finish.END


def write_script(request: Request, make_id: Callable[[str], str]) -> Script:
    """Write the reply to a request; `make_id` makes an id from a prefix."""
    reply = _write_reply(request, make_id)
    if request.model not in ("error-mid", "error-cut", "error-stall"):
        return Script(reply)
    deltas = [at for at, event in enumerate(reply) if isinstance(event, Delta)]
    begun = reply[: deltas[len(deltas) // 2] + 1] if deltas else reply[:1]
    if request.model == "error-mid":
        return Script((*begun, Failed(FAILS_MIDWAY)))
    return Script(begun, Finish.SILENCE if request.model == "error-stall" else Finish.END)


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


def _write_reply(request: Request, make_id: Callable[[str], str]) -> tuple[Event, ...]:
    last = last_text(request)
    builder = _ReplyBuilder(request.max_tokens)
    thought = 0
    if requests_thinking(request):
        _write_thinking(builder, request, last)
        thought = builder.spent
    calls = requested_calls(request, last)
    sequence = None
    if calls:
        for call in calls:
            builder.add_block(_call_block(call, make_id), call.arguments)
    else:
        text, sequence = _cut_at_stop(_answer_text(request, last), request.stop)
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


def _write_thinking(builder: _ReplyBuilder, request: Request, last: str) -> None:
    thoughts = f"The user said: {last}"
    signature = base64.b64encode(hashlib.sha256(thoughts.encode()).digest()).decode()
    hidden = request.reasoning is not None and request.reasoning.show == "omitted"
    opaque = Opaque(ISSUER, Form.SIGNATURE, signature, request.model)
    builder.add_block(ThinkingBlock(), "" if hidden else thoughts, opaque)


def _answer_text(request: Request, last: str) -> str:
    returned = results_text(request)
    text = returned if returned is not None else last or "Nothing was said."
    if request.format is None or request.format.shape is Shape.TEXT or _is_object(text):
        return text
    made = make_example(request.format.schema) if request.format.shape is Shape.SCHEMA else {"echo": text}
    return msgspec.json.encode(made).decode()


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


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
            request = msgspec.json.decode(out.body, type=Request)
        except (msgspec.DecodeError, RecursionError):
            return _make_error(400, Failure(Kind.BAD_REQUEST, "echo cannot parse this request"))
        if request.model in REFUSALS:
            return _make_error(*REFUSALS[request.model])
        if request.model not in _KNOWN:
            return _make_error(
                404, Failure(Kind.NOT_FOUND, f"echo has no model {request.model!r}", code="model_not_found")
            )
        script = write_script(request, _make_id)
        if request.stream:
            pace = SLOW if request.model == "slow" else Pace(word_s=self._word_s)
            return EchoResponse(200, [_LINES], _stream_pieces(script, pace))
        return EchoResponse(200, [JSON], _whole_piece(script, SLOW if request.model == "slow" else Pace()))


def _make_error(status: int, failure: Failure) -> EchoResponse:
    headers = [JSON]
    if failure.retry_after is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(failure.retry_after)))
    return EchoResponse(status, headers, iter([(0.0, msgspec.json.encode(failure))]))


def _stream_pieces(script: Script, pace: Pace) -> Iterator[Piece]:
    """Yield one piece for each word, with the events before it."""
    lines: list[bytes] = []
    wait_s = pace.first_s
    for event in script.events:
        lines.append(msgspec.json.encode(event) + b"\n")
        if isinstance(event, Delta):
            yield wait_s + pace.word_s, b"".join(lines)
            lines.clear()
            wait_s = 0.0
    if lines:
        yield wait_s, b"".join(lines)
    if script.finish is Finish.SILENCE:
        yield math.inf, b""


def _whole_piece(script: Script, pace: Pace) -> Iterator[Piece]:
    wait_s = math.inf if script.finish is Finish.SILENCE else pace.first_s
    yield wait_s, msgspec.json.encode(script.events)


def _make_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def make_echo(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        return ()

    models = tuple(ModelInfo(name, text, owned_by="dragoman") for name, text in MODELS if name in LISTED)
    return Provider(
        name=config.name,
        kind=config.kind,
        issuer=config.name,
        endpoint=Endpoint(
            url="http://echo.invalid",
            protocols=("native",),
            send=Echo().send,
            dial=read_dial(config, environ),
            headers=read_headers(config, environ),
            first_token=FirstTokenWait(config.first_token_timeout_s),
        ),
        auth=Auth(authorize, secrets=read_secrets(config, environ)),
        catalogue=Catalogue(models=models, has_list=False),
    )

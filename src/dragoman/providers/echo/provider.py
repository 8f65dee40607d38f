"""Echo: a provider inside the gateway, without an address or a key and with a fixed list of models."""

import asyncio
import math
import secrets
from collections.abc import Iterator, Mapping

import msgspec

from dragoman.config.settings import ProviderConfig
from dragoman.hub.events import Delta
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.request import Request
from dragoman.net.client import ConnectionLost, DialOptions, OutgoingRequest, UpstreamTimeout
from dragoman.net.headers import JSON, Header, Headers
from dragoman.net.response_body import BodySink, read_chunks, stream_chunks
from dragoman.providers.connection import read_dial, read_headers, read_secrets
from dragoman.providers.echo.script import LISTED, MODELS, REFUSALS, SLOW, Finish, Pace, Script, write_script
from dragoman.providers.provider import Auth, Catalogue, Endpoint, ModelInfo, Provider, SendRequest

WORD_S = 0.02  # slow enough for a person to see it stream

_KNOWN = frozenset(name for name, _ in MODELS)
_LINES = (b"content-type", b"application/x-ndjson")

Piece = tuple[float, bytes]  # seconds to wait, then the bytes


class EchoResponse:
    """A response whose pieces come with delays; it is used like one from the network."""

    __slots__ = ("_closed", "_due", "_next", "_pieces", "headers", "status")

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

    def take_whole(self) -> bytes | None:
        return None  # read by chunks

    async def stream_to(self, sink: BodySink, timeout_s: float) -> bool:
        return await stream_chunks(self.chunk, sink, timeout_s)

    async def read(self, limit: int, timeout_s: float) -> bytes:
        return await read_chunks(self, limit, timeout_s, "echo")

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
    async def authorize(protocol: str) -> tuple[Header, ...]:
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
            first_token_timeout_s=config.first_token_timeout_s,
        ),
        auth=Auth(authorize, secrets=read_secrets(config, environ)),
        catalogue=Catalogue(models=models, has_list=False),
    )

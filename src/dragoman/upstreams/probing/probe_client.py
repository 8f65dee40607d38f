"""Requests of a probe: one provider, any protocol, and what its reply shows."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Literal

import msgspec
from msgspec import Struct

from dragoman.net.bodies import read_and_close
from dragoman.net.client import ConnectionLost, SizeLimitExceeded, UpstreamTimeout
from dragoman.net.headers import JSON, Header
from dragoman.translate.framing.error_text import clean_message
from dragoman.translate.framing.jsonread import JSON_ERRORS, parse_or
from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.failure import Kind
from dragoman.translate.protocols.chat.errors import find_error, read_error, read_failure
from dragoman.translate.protocols.chat.wire import DONE, CallPiece, Chunk, Message
from dragoman.translate.protocols.messages.wire import ANTHROPIC_VERSION
from dragoman.upstreams.provider import IncomingResponse, Provider, UnsignedRequest

TIMEOUT_S = 120.0  # a server may have to load the model first
MAX_BYTES = 4 * 1024 * 1024
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
# llama-cpp-python responds with 500 to unknown fields.
REFUSALS = frozenset({Kind.BAD_REQUEST, Kind.NOT_FOUND, Kind.UPSTREAM})

Wire = dict[str, object]
Verdict = Literal["supported", "rejected", "unclear"]


class ProbeReply(Struct, frozen=True):
    """A reply: whole in one chunk, or streamed in many. `message` says what went wrong."""

    verdict: Verdict
    message: str = ""
    chunks: tuple[Chunk, ...] = ()
    done: bool = False

    @property
    def messages(self) -> list[Message]:
        choices = (choice for chunk in self.chunks for choice in chunk.choices or ())
        return [message for choice in choices if (message := choice.message or choice.delta) is not None]

    @property
    def calls(self) -> list[CallPiece]:
        return [call for message in self.messages for call in message.tool_calls or ()]

    @property
    def text(self) -> str:
        return "".join(message.content for message in self.messages if isinstance(message.content, str))

    @property
    def pieces(self) -> int:
        """The number of pieces in which the text came."""
        return sum(bool(message.content) for message in self.messages)

    @property
    def finish_reason(self) -> str | None:
        reported = [choice.finish_reason for chunk in self.chunks for choice in chunk.choices or ()]
        return next((reason for reason in reversed(reported) if reason), None)

    @property
    def output_tokens(self) -> int | None:
        """The length of the reply, if the server reports it."""
        reported = [chunk.usage.completion_tokens for chunk in self.chunks if chunk.usage is not None]
        return int(reported[-1]) if reported and reported[-1] is not None else None


class ProbeClient:
    """Sends requests to one provider in any protocol, and counts them."""

    def __init__(self, provider: Provider, model: str) -> None:
        self._provider = provider
        self._model = model
        self.requests_sent = 0

    async def request(self, fields: Wire) -> ProbeReply:
        response = await self._post("chat", fields)
        return response if isinstance(response, ProbeReply) else await _read_reply(response)

    async def stream(self, fields: Wire) -> ProbeReply:
        return _collect([item async for item in self._stream(fields)])

    async def stream_until(self, fields: Wire, pieces: int) -> ProbeReply:
        """Stream until there are `pieces` pieces: a server that ignores a cap may go on for minutes."""
        items: list[Chunk | bytes | ProbeReply] = []
        async with aclosing(self._stream(fields)) as stream:
            async for item in stream:
                items.append(item)
                if _collect(items).pieces >= pieces:
                    break
        return _collect(items)

    async def stream_beside(self, fields: Wire, by: Wire) -> ProbeReply:
        """Stream while another request is sent, as soon as the stream has begun."""
        items = []
        async for item in self._stream(fields):
            items.append(item)
            if len(items) == 1:
                await self.request(by)
        return _collect(items)

    async def _stream(self, fields: Wire) -> AsyncGenerator[Chunk | bytes | ProbeReply]:
        """Yield chunks as they come, and DONE; or the failed reply."""
        response = await self._post("chat", {**fields, "stream": True})
        if isinstance(response, ProbeReply):
            yield response
            return
        framer = SseFramer()
        try:
            while piece := await response.chunk(TIMEOUT_S):
                for item in _read_frames(framer.feed(piece)):
                    yield item
                    if item == DONE:  # some servers drop the connection after it
                        return
            for item in _read_frames(framer.finish()):
                yield item
        except (ConnectionLost, UpstreamTimeout, *JSON_ERRORS) as fault:
            yield ProbeReply("unclear", clean_message(str(fault)))
        finally:
            response.close()

    async def supports(self, protocol: str, fields: Wire, mark: str) -> ProbeReply:
        """Return whether a protocol's request gets a reply of that protocol, which has the field `mark`."""
        response = await self._post(protocol, fields)
        if isinstance(response, ProbeReply):
            return response
        body = await _read_body(response)
        if isinstance(body, ProbeReply):
            return body
        reply = parse_or(body, dict[str, object], {})
        # An empty reply counts, too.
        is_reply = mark in reply and not reply.get("error")
        return ProbeReply("supported") if is_reply else ProbeReply("rejected", "its response is of another protocol")

    async def _post(self, protocol: str, fields: Wire) -> IncomingResponse | ProbeReply:
        self.requests_sent += 1
        provider = self._provider
        url = provider.endpoint.urls.get(protocol, provider.endpoint.url) + PATHS[protocol]
        own: tuple[Header, ...] = (JSON,)
        if protocol == "messages":
            own = (*own, ANTHROPIC_VERSION)
        body = msgspec.json.encode({"model": self._model, **fields})
        request = UnsignedRequest(protocol, "POST", url, (*provider.endpoint.headers, *own), body=body)
        out = request.add_credentials(await provider.auth.authorize(request))
        try:
            response = await provider.endpoint.send(out, provider.endpoint.dial, head_timeout_s=TIMEOUT_S)
            if response.status == 200:
                return response
            failure = read_failure(
                response.status, dict(response.headers), await read_and_close(response, MAX_BYTES, TIMEOUT_S)
            )
        except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded) as fault:
            return ProbeReply("unclear", clean_message(str(fault)))
        return ProbeReply("rejected" if failure.kind in REFUSALS else "unclear", failure.message)


async def _read_body(response: IncomingResponse) -> bytes | ProbeReply:
    try:
        return await read_and_close(response, MAX_BYTES, TIMEOUT_S)
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded) as fault:
        return ProbeReply("unclear", clean_message(str(fault)))


async def _read_reply(response: IncomingResponse) -> ProbeReply:
    body = await _read_body(response)
    if isinstance(body, ProbeReply):
        return body
    try:
        chunk = msgspec.json.decode(body, type=Chunk)
    except JSON_ERRORS:
        return ProbeReply("rejected", "its response is not Chat")
    if not chunk.choices:
        failure = read_error(find_error(body))
        return ProbeReply("rejected", failure.message if failure is not None else "its response has no choices")
    return ProbeReply("supported", chunks=(chunk,))


def _read_frames(frames: Iterable[object]) -> list[Chunk | bytes | ProbeReply]:
    read_items: list[Chunk | bytes | ProbeReply] = []
    for frame in frames:
        data = frame.data.strip() if isinstance(frame, Frame) else b""
        if data == DONE:
            read_items.append(DONE)
        elif data:
            read_items.append(msgspec.json.decode(data, type=Chunk))
    return read_items


def _collect(items: list[Chunk | bytes | ProbeReply]) -> ProbeReply:
    """Join a stream into one reply; one with an error or without any content counts as refused."""
    instead = next((item for item in items if isinstance(item, ProbeReply)), None)
    chunks = tuple(item for item in items if isinstance(item, Chunk))
    if instead is not None:
        return instead
    wrong = next((chunk.error for chunk in chunks if chunk.error), None)
    if wrong is not None or not any(chunk.choices for chunk in chunks):
        failure = read_error(wrong)
        return ProbeReply("rejected", failure.message if failure is not None else "its stream is empty")
    return ProbeReply("supported", chunks=chunks, done=DONE in items)

"""An upstream that bills by the size of a request, as vendors with prompt caches do, and keeps its own account."""

import asyncio
import random
from typing import Final

import msgspec
from msgspec import Struct

BYTES_PER_TOKEN = 4
MISSES = 0.05  # of requests find nothing in the cache
FRESH = 0.1  # of the input of the others is new
# Dollars per million tokens: ten times those of a large model, for contexts of a tenth of the usual size.
PRICES: Final = {"input": 50, "output": 250, "cache_read": 5, "cache_write": 62.5}
PRICE_LINES = '[[prices]]\nmodel = "*"\n' + "".join(f"{name} = {price}\n" for name, price in PRICES.items())
NANO_PER_TOKEN = {name: round(price * 1000) for name, price in PRICES.items()}


NamedFields = tuple[str, dict[str, object]]  # of an event


class Bill(Struct):
    """What the upstream has to get, in nanodollars."""

    total: int = 0
    dearest: int = 0
    requests: int = 0
    at_once: int = 0
    most_at_once: int = 0


class Used(Struct):
    fresh: int
    read: int
    written: int
    output: int

    @property
    def cost(self) -> int:
        names = (("input", self.fresh), ("cache_read", self.read), ("cache_write", self.written))
        return sum(NANO_PER_TOKEN[name] * tokens for name, tokens in (*names, ("output", self.output)))


class BillingUpstream:
    """Serves Messages, Chat and Responses streams; how long each of them takes is between two `lengths_s`."""

    def __init__(self, seed: int, lengths_s: tuple[float, float] = (0.02, 0.06)) -> None:
        self.bill = Bill()
        self._lengths_s = lengths_s
        self.port = 0
        self._chance = random.Random(seed)
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1") -> None:
        self._server = await asyncio.start_server(self._serve, host, 0, limit=1 << 20, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
            body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
            path = head.split(b" ", 2)[1]
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            await self._answer(path, body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def _answer(self, path: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        used = self._measure(len(body), caches_writes=path.endswith(b"/messages"))
        bill = self.bill
        bill.total += used.cost
        bill.dearest = max(bill.dearest, used.cost)
        bill.requests += 1
        bill.at_once += 1
        bill.most_at_once = max(bill.most_at_once, bill.at_once)
        begin, end = write_reply(path, used)
        try:
            writer.write(begin)
            await asyncio.sleep(self._chance.uniform(*self._lengths_s))
        finally:
            bill.at_once -= 1
        writer.write(end)
        await writer.drain()

    def _measure(self, size: int, *, caches_writes: bool) -> Used:
        tokens, output = size // BYTES_PER_TOKEN, self._chance.randint(50, 200)
        if self._chance.random() < MISSES:
            return Used(0, 0, tokens, output) if caches_writes else Used(tokens, 0, 0, output)
        fresh = round(tokens * FRESH)
        return Used(fresh, tokens - fresh, 0, output)


def write_reply(path: bytes, used: Used) -> tuple[bytes, bytes]:
    """Return how a stream begins, with its first text, and its rest with what it has used."""
    if path.endswith(b"/messages"):
        return _write_messages(used)
    return _write_responses(used) if path.endswith(b"/responses") else _write_chat(used)


def _event(value: object, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + msgspec.json.encode(value) + b"\n\n"


def _write_messages(used: Used) -> tuple[bytes, bytes]:
    read = {"input_tokens": used.fresh, "cache_read_input_tokens": used.read}
    usage = {**read, "cache_creation_input_tokens": used.written, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    text = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    end = {"type": "message_delta", "delta": stop, "usage": {"output_tokens": used.output}}
    begin = _event({"type": "message_start", "message": message}, "message_start")
    return (
        begin + _event(text, "content_block_start") + _event(delta, "content_block_delta"),
        _event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        + _event(end, "message_delta")
        + _event({"type": "message_stop"}, "message_stop"),
    )


def _write_chat(used: Used) -> tuple[bytes, bytes]:
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    delta = {"index": 0, "delta": {"role": "assistant", "content": "Hello"}, "finish_reason": None}
    usage = {
        "prompt_tokens": used.fresh + used.read,
        "completion_tokens": used.output,
        "total_tokens": used.fresh + used.read + used.output,
        "prompt_tokens_details": {"cached_tokens": used.read},
    }
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    end = _event({**common, "choices": [last]}) + _event({**common, "choices": [], "usage": usage})
    return _event({**common, "choices": [delta]}), end + b"data: [DONE]\n\n"


def _write_responses(used: Used) -> tuple[bytes, bytes]:
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    usage = {
        "input_tokens": used.fresh + used.read,
        "input_tokens_details": {"cached_tokens": used.read},
        "output_tokens": used.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.fresh + used.read + used.output,
    }
    part = {"type": "output_text", "text": "Hello", "annotations": []}
    whole = {**item, "status": "completed", "content": [part]}
    begin: tuple[NamedFields, ...] = (
        ("response.created", {"response": {**response, "status": "in_progress"}}),
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.content_part.added", {**place, "part": {**part, "text": ""}}),
        ("response.output_text.delta", {**place, "delta": "Hello"}),
    )
    end: tuple[NamedFields, ...] = (
        ("response.output_text.done", {**place, "text": "Hello"}),
        ("response.content_part.done", {**place, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": whole}),
        ("response.completed", {"response": {**response, "status": "completed", "output": [whole], "usage": usage}}),
    )
    events = [
        _event({"type": name, "sequence_number": at, **more}, name) for at, (name, more) in enumerate(begin + end)
    ]
    return b"".join(events[: len(begin)]), b"".join(events[len(begin) :])

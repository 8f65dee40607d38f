"""The upstream of the survival cases: it behaves as the requested model's name says (`python -m … --port N`)."""

import argparse
import asyncio
import gzip
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import cache

PACE_S = 0.01
TRICKLE_S = 0.3
LARGE_REPLY = 250 << 20
MEGABYTE = 1_000_000
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FIELD = re.compile(rb'"(f\d+)":')
MODEL = re.compile(rb'"model"\s*:\s*"([a-z0-9-]{1,40})"')
PIECE = 1 << 16
ENDS = 4096  # of a body: the model's name stands in its first or last bytes

Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def message_event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def completion(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}).encode()


async def answer_ok(writer: asyncio.StreamWriter) -> None:
    body = completion("Fine.")
    writer.write(JSON_HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)


async def answer_message(writer: asyncio.StreamWriter) -> None:
    usage = {"input_tokens": 1, "output_tokens": 1}
    content = [{"type": "text", "text": "Fine."}]
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": content, "usage": usage}
    body = json.dumps({**message, "stop_reason": "end_turn", "stop_sequence": None}).encode()
    writer.write(JSON_HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)


async def stream_megabyte(writer: asyncio.StreamWriter) -> None:
    """Stream a reply of one megabyte, in events of 4 kB."""
    writer.write(SSE_HEAD)
    text = event({"content": "word " * 800})
    for _ in range(MEGABYTE // len(text)):
        writer.write(chunk(text))
        await writer.drain()
    writer.write(chunk(event({}, "stop") + b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def cut(writer: asyncio.StreamWriter) -> None:
    """Begin a reply, and close the connection."""
    writer.write(SSE_HEAD + chunk(event({"content": "word "})))
    await writer.drain()
    raise ConnectionError("as planned")


async def fail(writer: asyncio.StreamWriter) -> None:
    body = b'{"error": {"message": "The upstream is down.", "type": "server_error"}}'
    head = b"HTTP/1.1 500 Error\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(body) + body)


async def pace(writer: asyncio.StreamWriter) -> None:
    """Stream the time every 10 ms until the reader leaves."""
    writer.write(SSE_HEAD + chunk(event({"role": "assistant", "content": ""})))
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        writer.write(chunk(event({"content": f"{time.monotonic():.6f} "})))
        await writer.drain()
        due += PACE_S
        await asyncio.sleep(max(0.0, due - loop.time()))


@cache
def make_packed_reply() -> bytes:
    """A reply of 200 MB, packed into a fraction; made before the measurement begins."""
    return gzip.compress(completion("0" * (200 << 20)), 1)


async def bomb(writer: asyncio.StreamWriter) -> None:
    body = make_packed_reply()
    writer.write(JSON_HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


@cache
def make_packed_stream() -> bytes:
    """A stream of 20 MB, packed into a fraction."""
    return gzip.compress(event({"content": "word " * 20}) * 80_000 + event({}, "stop") + b"data: [DONE]\n\n", 1)


async def stream_packed(writer: asyncio.StreamWriter) -> None:
    body = make_packed_stream()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(body) + body)


async def call_tools(writer: asyncio.StreamWriter, count: int) -> None:
    """Stream `count` parallel tool calls, several to a chunk as a hostile server would."""
    writer.write(SSE_HEAD)
    for start in range(0, count, 50):
        calls = [
            {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            for at in range(start, min(count, start + 50))
        ]
        writer.write(chunk(event({"tool_calls": calls})))
        await writer.drain()
    writer.write(chunk(event({}, "tool_calls") + b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def answer_large(writer: asyncio.StreamWriter) -> None:
    first, last = completion("@").split(b"@")
    size = len(first) + LARGE_REPLY + len(last)
    writer.write(JSON_HEAD + b"content-length: %d\r\n\r\n" % size + first)
    for _ in range(LARGE_REPLY // PIECE):
        writer.write(b"x" * PIECE)
        await writer.drain()
    writer.write(b"x" * (LARGE_REPLY % PIECE) + last)


async def flood(writer: asyncio.StreamWriter) -> None:
    """Stream as fast as the gateway reads, without end."""
    writer.write(SSE_HEAD)
    burst = chunk(b"".join(event({"content": "word " * 20}) for _ in range(100)))
    while True:
        writer.write(burst)
        await writer.drain()


async def trickle(writer: asyncio.StreamWriter, head: bytes) -> None:
    writer.write(head + b"content-length: 100000\r\n\r\n{")
    while True:
        await writer.drain()
        await asyncio.sleep(TRICKLE_S)
        writer.write(b" ")


async def forbid(writer: asyncio.StreamWriter, size: int, names: Iterable[str] = ()) -> None:
    """Refuse these fields, or as many as make an error of this size."""
    problem = '{"type":"extra_forbidden","loc":["body","%s"],"msg":"Extra inputs are not permitted"}'
    problems = [problem % name for name in names or map("x{}".format, range(size // 90))]
    body = b'{"detail":[' + ",".join(problems).encode() + b"]}"
    writer.write(
        b"HTTP/1.1 400 Error\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


PAGE = b"a" * (4 << 20)  # its charset takes quadratic time to decode
PROSE = "\n".join(f"Title: t{at}\nhttps://a.test/{at}" for at in range(20_000))
PAGE_URL = "http://93.184.216.34/page"  # a public address; the proxy that leads there is this server


async def call_tool(writer: asyncio.StreamWriter, name: str, arguments: dict[str, str]) -> None:
    """Call one of the gateway's own tools."""
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    write_json(writer, {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices})


def write_json(writer: asyncio.StreamWriter, value: object) -> None:
    body = json.dumps(value).encode()
    writer.write(JSON_HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)


async def answer_gemini(writer: asyncio.StreamWriter) -> None:
    content = {"role": "model", "parts": [{"text": "Fine."}]}
    write_json(writer, {"candidates": [{"content": content, "finishReason": "STOP"}], "modelVersion": "m"})


def answer_mcp(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Answer as an MCP server whose search returns prose."""
    id = re.search(rb'"id":(\d+)', body)
    if id is None:  # a notification
        writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
    elif b'"initialize"' in body:
        write_json(writer, {"jsonrpc": "2.0", "id": int(id[1]), "result": {"protocolVersion": "2025-06-18"}})
    else:
        result = {"content": [{"type": "text", "text": PROSE}]}
        write_json(writer, {"jsonrpc": "2.0", "id": int(id[1]), "result": result})


def answer_get(writer: asyncio.StreamWriter, head: bytes) -> None:
    if head.startswith(b"GET /page"):
        fields = b"content-type: text/html; charset=punycode\r\ncontent-length: %d\r\n\r\n" % len(PAGE)
        writer.write(b"HTTP/1.1 200 OK\r\n" + fields + PAGE)
        return
    status = b"200 OK" if head.startswith(b"GET /health") else b"404 Not Found"  # a list of models would bind us to it
    writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)


def choose_behaviour(head: bytes, body: bytes) -> Behaviour:
    named = MODEL.search(body)
    model = named[1].decode() if named else "ok"
    if b":generateContent" in head.split(b"\r\n", 1)[0]:
        return answer_gemini
    if model == "teach":
        refused = FIELD.findall(body)
        return (lambda writer: forbid(writer, 0, [name.decode() for name in refused])) if refused else answer_ok
    if model in TOOLS and b'"tool_calls"' in body:  # the tool has run
        return answer_ok
    return BEHAVIOURS[model]


TOOLS = ("fetch", "search")
BEHAVIOURS: dict[str, Behaviour] = {
    "ok": answer_ok,
    "message": answer_message,
    "fail": fail,
    "cut": cut,
    "megabyte": stream_megabyte,
    "pace": pace,
    "bomb": bomb,
    "packed": stream_packed,
    "large": answer_large,
    "flood": flood,
    "forbid-1": lambda writer: forbid(writer, 1_000_000),
    "forbid-16": lambda writer: forbid(writer, 16_000_000),
    "fetch": lambda writer: call_tool(writer, "web_fetch", {"url": PAGE_URL}),
    "search": lambda writer: call_tool(writer, "web_search", {"query": "pandas"}),
    "calls-5000": lambda writer: call_tools(writer, 5_000),
    "calls-100000": lambda writer: call_tools(writer, 100_000),
    "trickle-json": lambda writer: trickle(writer, JSON_HEAD),
    "trickle-error": lambda writer: trickle(writer, b"HTTP/1.1 500 Error\r\ncontent-type: application/json\r\n"),
}


async def read_ends(reader: asyncio.StreamReader, length: int) -> bytes:
    """Read a body and return its first and last bytes: keeping it whole would delay the stream that is measured."""
    first, last = b"", b""
    while length:
        data = await reader.read(min(length, PIECE))
        if not data:
            raise asyncio.IncompleteReadError(b"", length)
        length -= len(data)
        first, last = first or data[:ENDS], (last + data)[-ENDS:]
    return first + last


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.search(rb"content-length: (\d+)", head)
            body = await read_ends(reader, int(length[1]) if length else 0)
            if head.startswith(b"CONNECT"):  # the gateway fetches a page through its proxy
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            elif head.startswith(b"GET"):
                answer_get(writer, head)
            elif head.startswith(b"POST /silent"):
                await hang(writer)
            elif head.startswith(b"POST /mcp"):
                answer_mcp(writer, body)
            else:
                await choose_behaviour(head, body)(writer)
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        return
    finally:
        writer.close()


async def run(port: int) -> None:
    make_packed_reply()
    make_packed_stream()
    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 20, backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(run(parser.parse_args().port))

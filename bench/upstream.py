"""The fake upstream: it answers with replies rendered beforehand, whole, in one burst or paced."""

import argparse
import asyncio
from typing import cast

import msgspec
import uvloop

from bench.cases import PACE_S, PATHS, UPSTREAMS
from bench.wire import stream_events, whole_reply

MAX_REQUEST_BYTES = 1 << 20
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
CONTENT_TYPES = {"kiro": b"application/vnd.amazon.eventstream"}
GEMINI = PATHS["gemini"].encode()
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def json_answer(body: bytes) -> bytes:
    return JSON_HEAD % len(body) + body


class Script:
    """Every answer, as the writes that make it up."""

    def __init__(self) -> None:
        self.whole: dict[bytes, bytes] = {}
        self.burst: dict[bytes, bytes] = {}
        self.steps: dict[bytes, list[bytes]] = {}
        for protocol in UPSTREAMS:
            path = PATHS[protocol].encode()
            head = STREAM_HEAD % CONTENT_TYPES.get(protocol, b"text/event-stream")
            steps = [chunk(event) for event in stream_events(protocol)]
            self.burst[path] = head + b"".join(steps) + LAST_CHUNK
            self.steps[path] = [head + steps[0], *steps[1:-1], steps[-1] + LAST_CHUNK]
            # Kiro knows no whole replies: a gateway makes them of a stream.
            self.whole[path] = self.burst[path] if protocol == "kiro" else json_answer(whole_reply(protocol))
        names = [f"bench-{mode}" for mode in ("whole", "burst", *PACE_S)]
        models = [{"id": name, "object": "model", "type": "model", "display_name": name} for name in names]
        self.models = json_answer(msgspec.json.encode({"object": "list", "has_more": False, "data": models}))
        self.lost = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


class Desk(asyncio.Protocol):
    """One connection; requests are answered one after the other."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._held = b""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._held = held = self._held + data if self._held else data
        end = held.find(b"\r\n\r\n")
        if end < 0:
            return
        total = end + 4 + _length(held[: end + 2])
        if total > MAX_REQUEST_BYTES:
            self._transport.abort()
        elif len(held) >= total:
            self._held = held[total:]
            self._answer(held[: held.find(b"\r\n")].split(b" ")[1], held[end + 4 : total])

    def _answer(self, path: bytes, body: bytes) -> None:
        script = self._script
        path = path.partition(b"?")[0]
        if path.startswith(GEMINI):  # model and mode stand in the path
            path, body = GEMINI, path
        if path == b"/v1/models":
            self._transport.write(script.models)
        elif path not in script.whole:
            self._transport.write(script.lost)
        elif b"bench-whole" in body:
            self._transport.write(script.whole[path])
        elif b"bench-burst" in body:
            self._transport.write(script.burst[path])
        else:
            pace = PACE_S["slow" if b"bench-slow" in body else "paced"]
            self._step(script.steps[path], 0, self._loop.time(), pace)

    def _step(self, steps: list[bytes], at: int, began: float, pace: float) -> None:
        self._transport.write(steps[at])
        at += 1
        if at < len(steps):
            self._timer = self._loop.call_at(began + at * pace, self._step, steps, at, began, pace)


def _length(head: bytes) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    return int(head[at + 17 : head.find(b"\r\n", at + 2)]) if at >= 0 else 0


async def serve(port: int) -> None:
    script = Script()
    server = await asyncio.get_running_loop().create_server(lambda: Desk(script), "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.upstream", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()

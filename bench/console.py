"""What the console costs a gateway with many streams: its CPU, its memory, and how late a client gets each event.

Run it as `python -m bench.console [--streams 500] [--seconds 120] [--workers 1]`. The gateway runs without the console,
then with it and no tab, then with three tabs, one of which inspects a stream, in four parts, and again without a tab.
`--seconds` is the time with tabs; the other parts take a quarter of it each.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

EVENTS_PER_S = 5.0
PARTS = 4  # of the time with tabs
WARM_UP_S = 3.0
TABS = ("", "", "&frames={id}")
REQUEST_ID = re.compile(rb"x-dragoman-request-id: (\S+)\r\n")
KEY = "dgm_bench-console-0123456789"
CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"at:%.6f "},"finish_reason":null}]}\n\n'
)
SENT_AT = re.compile(rb"at:(\d+\.\d{6})")
BODY = b'{"model":"up/m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"x"}]}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TITLES = ("", "CPU", "memory", "delay p50", "p99", "feed events/s", "feed KiB/s")


async def serve_upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the time at a steady pace, for as long as the gateway reads."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            body = b'{"data":[{"id":"m"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 21\r\n\r\n" + body)
            return
        writer.write(HEAD)
        while True:
            chunk = CHUNK % time.monotonic()
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await writer.drain()
            await asyncio.sleep(1 / EVENTS_PER_S)
    except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


@dataclass
class Seen:
    """What clients and tabs have received since the last row of the table."""

    delays: list[float] = field(default_factory=list)  # between the upstream's write and the client's read
    feed_events: int = 0
    feed_bytes: int = 0
    frames: int = 0
    request_id: str = ""  # of the last stream that began

    async def read_stream(self, port: int) -> None:
        async with open_request(port, "POST /v1/messages", f"content-length: {len(BODY)}\r\n", BODY) as reader:
            head = await reader.readuntil(b"\r\n\r\n")
            self.request_id = REQUEST_ID.findall(head)[0].decode()
            while data := await reader.read(65536):
                now = time.monotonic()
                self.delays += [now - float(sent) for sent in SENT_AT.findall(data)]

    async def read_feed(self, port: int, query: str) -> None:
        async with open_request(port, f"GET /api/v1/feed?watch=live{query}", "") as reader:
            while data := await reader.read(1 << 20):
                self.feed_bytes += len(data)
                self.feed_events += data.count(b"event: rows")
                self.frames += data.count(b"event: frames")


@asynccontextmanager
async def open_request(port: int, path: str, fields: str, body: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {KEY}\r\n{fields}\r\n"
    writer.write(head.encode() + body)
    try:
        yield reader
    finally:
        writer.close()


def processes(pid: int) -> list[int]:
    """Return a gateway and its workers."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def cpu_s(pid: int) -> float:
    ticks = 0
    for one in processes(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the memory that the processes have for themselves: their heaps, without files and shared pages."""
    found = (re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{one}/status").read_text()) for one in processes(pid))
    return sum(int(match[1]) for match in found if match) / 1024


def start_gateway(directory: str, upstream: int, workers: int, console: bool) -> "subprocess.Popen[bytes]":
    section = f'[providers.up]\nkind = "openai-compatible"\nendpoint = "http://127.0.0.1:{upstream}/v1"\n'
    Path(directory, "dragoman.toml").write_text(section)
    environ = os.environ | {"HOME": directory, "DRAGOMAN_API_KEY": KEY, "DRAGOMAN_CONSOLE": "1" if console else "0"}
    words = [sys.executable, "-m", "dragoman", "serve", "--port", "0", "--workers", str(workers)]
    return subprocess.Popen(words, cwd=directory, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def print_row(*cells: str) -> None:
    first, *others = cells
    print(f"| {first:28} |" + "".join(f" {cell:>13} |" for cell in others), flush=True)


async def report(what: str, pid: int, seen: Seen, seconds: float) -> None:
    """Measure for a while and print a row."""
    seen.delays, seen.feed_events, seen.feed_bytes = [], 0, 0
    before, began = cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - began
    share, delays = (cpu_s(pid) - before) / passed * 100, sorted(seen.delays)
    p50, p99 = (f"{delays[int(len(delays) * part)] * 1000:.1f} ms" if delays else "–" for part in (0.5, 0.99))
    events, size = f"{seen.feed_events / passed:.1f}", f"{seen.feed_bytes / passed / 1024:.1f}"
    print_row(what, f"{share:.1f} %", f"{memory_mb(pid):.1f} MB", p50, p99, events, size)


async def measure(options: argparse.Namespace, console: bool) -> None:
    upstream = await asyncio.start_server(serve_upstream, "127.0.0.1", 0, backlog=1024)
    address = upstream.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        gateway = start_gateway(directory, address, options.workers, console)
        assert gateway.stdout is not None
        first = await asyncio.to_thread(gateway.stdout.readline)
        port = int(re.findall(rb":(\d+)", first)[0])
        seen = Seen()
        try:
            streams = [asyncio.ensure_future(seen.read_stream(port)) for _ in range(options.streams)]
            await asyncio.sleep(WARM_UP_S)
            quarter = options.seconds / PARTS
            await report("console, no tab" if console else "no console", gateway.pid, seen, quarter)
            if console:
                await measure_tabs(gateway.pid, port, seen, quarter)
                await report("tabs closed", gateway.pid, seen, quarter)
            assert not any(stream.done() for stream in streams), "a stream has ended"
            await cancel(streams)
        finally:
            gateway.kill()
            gateway.wait()
    upstream.close()
    await asyncio.sleep(0.5)


async def measure_tabs(pid: int, port: int, seen: Seen, seconds: float) -> None:
    tabs = [asyncio.ensure_future(seen.read_feed(port, query.format(id=seen.request_id))) for query in TABS]
    await asyncio.sleep(WARM_UP_S)
    for part in range(1, PARTS + 1):
        await report(f"{len(TABS)} tabs, part {part} of {PARTS}", pid, seen, seconds)
    assert not any(tab.done() for tab in tabs), "a tab has ended"
    assert seen.frames, "the inspector got no frames"
    await cancel(tabs)


async def cancel(tasks: "Sequence[asyncio.Future[None]]") -> None:
    for task in tasks:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.console")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    load = f"{options.streams} streams, {EVENTS_PER_S:g} events a second each, Chat to Messages"
    print(f"{load}; workers: {options.workers}")
    print_row(*TITLES)
    print(f"|{'-' * 30}|" + f"{'-' * 14}:|" * (len(TITLES) - 1))
    await measure(options, console=False)
    await measure(options, console=True)


if __name__ == "__main__":
    asyncio.run(main())

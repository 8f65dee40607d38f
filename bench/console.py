"""What the console costs: CPU of the gateway with 500 streams, without it, with it, and with three tabs open.

Run it as `python -m bench.console [streams] [seconds]`.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EVENTS_PER_S = 5.0
TABS = 3
KEY = "dgm_bench-console-0123456789"
CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'
)
BODY = b'{"model":"up/m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"x"}]}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def serve_upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a word at a steady pace, for as long as the gateway reads."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            body = b'{"data":[{"id":"m"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 21\r\n\r\n" + body)
            return
        writer.write(HEAD)
        while True:
            writer.write(b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK))
            await writer.drain()
            await asyncio.sleep(1 / EVENTS_PER_S)
    except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


class Delays:
    """The times between two pieces of a stream, beyond what the upstream waits."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    async def read_stream(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nx-api-key: {KEY}\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        last = time.monotonic()
        try:
            while await reader.read(65536):
                now = time.monotonic()
                self.seen.append(now - last - 1 / EVENTS_PER_S)
                last = now
        finally:
            writer.close()

    def take(self) -> float:
        """Return the 99th percentile since the last call, in milliseconds."""
        seen, self.seen = sorted(self.seen), []
        return seen[int(len(seen) * 0.99)] * 1000 if seen else 0.0


async def read_feed(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET /api/v1/feed?watch=live HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {KEY}\r\n\r\n"
    writer.write(head.encode())
    try:
        while await reader.read(65536):
            pass
    finally:
        writer.close()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def start_gateway(directory: str, upstream: int, console: bool) -> "subprocess.Popen[bytes]":
    section = f'[providers.up]\nkind = "openai-compatible"\nendpoint = "http://127.0.0.1:{upstream}/v1"\n'
    Path(directory, "dragoman.toml").write_text(section)
    environ = os.environ | {"HOME": directory, "DRAGOMAN_API_KEY": KEY, "DRAGOMAN_CONSOLE": "1" if console else "0"}
    words = [sys.executable, "-m", "dragoman", "serve", "--port", "0"]
    return subprocess.Popen(words, cwd=directory, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


async def measure(console: bool, streams: int, seconds: float) -> None:
    upstream = await asyncio.start_server(serve_upstream, "127.0.0.1", 0)
    address = upstream.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        gateway = start_gateway(directory, address, console)
        assert gateway.stdout is not None
        first = await asyncio.to_thread(gateway.stdout.readline)
        port = int(re.findall(rb":(\d+)", first)[0])
        delays = Delays()
        readers = [asyncio.ensure_future(delays.read_stream(port)) for _ in range(streams)]
        await asyncio.sleep(3)
        await report("console, no tab" if console else "no console", gateway.pid, delays, seconds)
        if console:
            tabs = [asyncio.ensure_future(read_feed(port)) for _ in range(TABS)]
            await asyncio.sleep(3)
            await report(f"console, {TABS} tabs", gateway.pid, delays, seconds)
            await report(f"console, {TABS} tabs, later", gateway.pid, delays, seconds)
            for tab in tabs:
                tab.cancel()
        for one in readers:
            one.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        gateway.kill()
        gateway.wait()
    upstream.close()
    await asyncio.sleep(0.5)


async def report(what: str, pid: int, delays: Delays, seconds: float) -> None:
    delays.take()
    before, began = cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    share = (cpu_s(pid) - before) / (time.monotonic() - began) * 100
    print(f"{what:24} CPU {share:5.1f} %   {memory_mb(pid):6.1f} MB   p99 delay {delays.take():6.1f} ms", flush=True)


async def main() -> None:
    streams = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    print(f"{streams} streams, {EVENTS_PER_S:g} events a second each, Chat to Messages, {seconds:g} s each")
    await measure(False, streams, seconds)
    await measure(True, streams, seconds)


if __name__ == "__main__":
    asyncio.run(main())

"""Load a target over a number of connections; count the answers, their times and the wrong ones."""

import asyncio
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import httptools
import msgspec

from bench.wire import FIRST_WORD

WRK_GRACE_S = 20.0
FIRST_TOKEN = FIRST_WORD.encode()
LUA = """
local file = io.open("%s", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
%s
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\n{"requests":%%d,"seconds":%%.6f,"errors":%%d,"p50":%%.9f,"p99":%%.9f}\\n',
    summary.requests, summary.duration / 1e6, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
"""


@dataclass(frozen=True)
class Shot:
    """One request, to be sent again and again."""

    port: int
    path: str
    headers: dict[str, str]
    body: bytes

    def raw(self) -> bytes:
        lines = [f"POST {self.path} HTTP/1.1", f"host: 127.0.0.1:{self.port}", f"content-length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


class Outcome(msgspec.Struct, frozen=True):
    """What a load found. Seconds throughout; the first token is the first piece of text."""

    requests: int
    seconds: float
    errors: int
    p50: float
    p99: float
    first_p50: float | None = None
    first_p99: float | None = None
    gap_p99: float | None = None  # between one piece of a stream and the next

    @property
    def rate(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0


def run_wrk(shot: Shot, connections: int, seconds: int, cores: set[int], directory: Path) -> Outcome:
    """Loads for a fixed time with wrk."""
    body = directory / "body.json"
    body.write_bytes(shot.body)
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in shot.headers.items())
    script = directory / "load.lua"
    script.write_text(LUA % (body, headers))
    url = f"http://127.0.0.1:{shot.port}{shot.path}"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "15s", "-s", str(script), url]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=seconds + WRK_GRACE_S)
    finally:
        os.sched_setaffinity(0, before)
    return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Outcome)


async def run_counted(shot: Shot, connections: int, count: int, limit_s: float, spread_s: float = 0.0) -> Outcome:
    """Loads with a fixed number of requests, so that none is left half done; notes when each first token came.

    `spread_s` is over how long the connections begin: streams of different people do not start in the same moment.
    """
    tally = Tally(count)
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    callers = []
    try:
        for _ in range(min(connections, count)):
            _, caller = await loop.create_connection(lambda: Caller(shot.raw(), tally), "127.0.0.1", shot.port)
            callers.append(caller)
            await asyncio.sleep(spread_s / connections)
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*(caller.ended for caller in callers))
    except TimeoutError:
        tally.errors += tally.started - len(tally.wholes) - tally.errors
    finally:
        for caller in callers:
            caller.close()
    seconds = time.perf_counter() - began
    wholes, firsts, gaps = sorted(tally.wholes), sorted(tally.firsts), sorted(tally.gaps)
    return Outcome(
        requests=len(wholes),
        seconds=seconds,
        errors=tally.errors,
        p50=quantile(wholes, 0.5),
        p99=quantile(wholes, 0.99),
        first_p50=quantile(firsts, 0.5),
        first_p99=quantile(firsts, 0.99),
        gap_p99=quantile(gaps, 0.99) if gaps else None,
    )


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


@dataclass
class Tally:
    """What all connections of a load found together."""

    count: int
    started: int = 0
    errors: int = 0
    wholes: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


class Caller(asyncio.Protocol):
    """One connection: asks, reads the whole answer, asks again until the count is reached."""

    def __init__(self, raw: bytes, tally: Tally) -> None:
        self._raw = raw
        self._tally = tally
        self._head: bytes | None = b""
        self._is_waiting = False
        self._sent_at = self._last = 0.0  # when the request was sent, and when anything last arrived
        self._gap: float | None = None  # the last one never counts: a translation's end waits for what belongs to it
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_waiting:
            self._tally.errors += 1
        self._end()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def close(self) -> None:
        self._is_waiting = False
        self._transport.close()

    def on_body(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._head is None:
            if self._gap is not None:
                self._tally.gaps.append(self._gap)
            self._gap = now - self._last
        else:
            self._head += data
            if FIRST_TOKEN in self._head:
                self._head = None
                self._tally.firsts.append(now - self._sent_at)
        self._last = now

    def on_message_complete(self) -> None:
        self._is_waiting = False
        if self._parser.get_status_code() == 200:
            self._tally.wholes.append(time.perf_counter() - self._sent_at)
        else:
            self._tally.errors += 1
        self._ask()

    def _ask(self) -> None:
        if self._tally.started >= self._tally.count:
            self._end()
            return
        self._tally.started += 1
        self._parser = httptools.HttpResponseParser(self)
        self._head = b""
        self._gap = None
        self._is_waiting = True
        self._sent_at = self._last = time.perf_counter()
        self._transport.write(self._raw)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

"""A client that drops its connection at a random byte, comes back, and puts its reply together."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from bench.gateways import headers
from bench.resume.replies import ARRAY, make_reply, whole_part, without_signs

RUN = re.compile(rb"\r\nx-dragoman-run: (run_[0-9a-f]+)")
LIKELY_BYTES = 8_000  # of a reply: drops are spread over so many
MAX_DROPS = 4
PATIENCE_S = 60.0
BUSY = (b"HTTP/1.1 503 ", b"HTTP/1.1 529 ")
RETRY_S = 1.0


@dataclass(frozen=True)
class Way:
    """One client protocol before one upstream protocol."""

    client: str
    upstream: str

    @property
    def name(self) -> str:
        return f"{self.client}>{self.upstream}"

    @property
    def is_translated(self) -> bool:
        return self.client.partition("-")[0] != self.upstream

    @property
    def path(self) -> str:
        if not self.client.startswith("gemini"):
            return {"chat": "/v1/chat/completions", "messages": "/v1/messages"}.get(self.client, "/v1/responses")
        query = "" if self.client == ARRAY else "?alt=sse"
        return f"/v1beta/models/{self.upstream}/m:streamGenerateContent{query}"

    def body(self, number: int) -> bytes:
        text, fields = f"client-{number:04}", {"model": f"{self.upstream}/m", "stream": True}
        turns = [{"role": "user", "content": text}]
        bodies: dict[str, dict[str, object]] = {
            "chat": {**fields, "messages": turns},
            "messages": {**fields, "max_tokens": 99, "messages": turns},
            "responses": {**fields, "input": text, "store": False},
            "gemini": {"contents": [{"role": "user", "parts": [{"text": text}]}]},
        }
        return msgspec.json.encode(bodies[self.client.partition("-")[0]])


WAYS = (
    *(Way(name, name) for name in ("chat", "messages", "responses", "gemini")),
    *(Way(ARRAY, "gemini"), Way("responses", "chat"), Way("messages", "chat")),
    *(Way("gemini", "chat"), Way("chat", "messages"), Way(ARRAY, "messages")),
)


@dataclass
class Result:
    """What became of one client."""

    drops: int = 0
    resumed: int = 0  # with the run and the number of its last event
    retried: int = 0  # with its idempotency key: it did not have the head yet
    problem: str = ""


@dataclass
class Client:
    """One client of the gateways at these ports; it goes to the next one each time that it comes back."""

    ports: Sequence[int]
    way: Way
    number: int
    chance: Random
    result: Result = field(default_factory=Result)
    requests: int = 0

    async def run(self) -> Result:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._run()
        except (OSError, TimeoutError, EOFError) as problem:
            self.result.problem = f"{type(problem).__name__}: {problem}"
        return self.result

    async def _run(self) -> None:
        run, have, count = b"", b"", 0
        for turn in range(MAX_DROPS + 1):
            is_last = turn == MAX_DROPS or (turn > 0 and self.chance.random() < 0.4)
            limit = None if is_last else self.chance.randrange(LIKELY_BYTES)
            head, body, is_whole = await self._request_patiently(run, count - 1, limit)
            if head and b" 200 " not in head[:15]:
                self.result.problem = f"{head[:40]!r} {body[:200]!r}"
                return
            found = RUN.search(head)
            if found is None and not is_whole:
                self.result.drops += 1
                continue
            assert found is not None
            run = found[1]
            if is_whole:
                have += without_signs(body)
                break
            self.result.drops += 1
            events, part = whole_part(self.way.client, body)
            count, have = count + events, have + without_signs(part)
        await self._judge(run, have)

    async def _request_patiently(self, run: bytes, after: int, limit: int | None) -> tuple[bytes, bytes, bool]:
        """Ask again while no replica knows where the run is, as SDKs do."""
        while True:
            head, body, is_whole = await self._request(run, after, limit)
            if not head.startswith(BUSY):
                return head, body, is_whole
            await asyncio.sleep(RETRY_S)

    async def _judge(self, run: bytes, have: bytes) -> None:
        if self.way.is_translated:
            _, undisturbed, _ = await self._request_patiently(run, -1, None)
            expected = without_signs(undisturbed)
        else:
            expected = b"".join(make_reply(self.way.client, self.number))
        if have != expected:
            place = next((at for at in range(len(have)) if have[at : at + 1] != expected[at : at + 1]), len(have))
            shown, right = have[place : place + 60], expected[place : place + 60]
            self.result.problem = f"differs at byte {place}: {shown!r}, not {right!r}"
        elif b"client-%04d" % self.number not in have and not self.way.is_translated:
            self.result.problem = "the reply of another client"

    async def _request(self, run: bytes, after: int, limit: int | None) -> tuple[bytes, bytes, bool]:
        """Return head and body, as far as they were read, and whether that is all."""
        if run:
            self.result.resumed += 1
        elif self.result.drops:
            self.result.retried += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", self._choose_port())
        try:
            writer.write(self._format(run, after))
            received = bytearray()
            while limit is None or len(received) < limit:
                data = await reader.read(4096 if limit is None else min(4096, limit - len(received)))
                if not data:
                    break
                received += data
                if received.endswith(b"\r\n0\r\n\r\n"):
                    break
        finally:
            writer.transport.abort()
        head, _, rest = bytes(received).partition(b"\r\n\r\n")
        return (head + b"\r\n", *unchunk(rest)) if rest or b"\r\n\r\n" in received else (b"", b"", False)

    def _choose_port(self) -> int:
        self.requests += 1
        return self.ports[(self.number + self.requests) % len(self.ports)]

    def _format(self, run: bytes, after: int) -> bytes:
        body = b"" if run else self.way.body(self.number)
        fields = headers(self.way.client.partition("-")[0]) | {
            "host": "127.0.0.1",
            "connection": "close",
            "content-length": str(len(body)),
        }
        if run:
            fields["x-dragoman-resume"] = f"{run.decode()}:{after}"
        else:
            fields["idempotency-key"] = f"key-{self.number}"
        lines = [f"POST {self.way.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        return "\r\n".join(lines).encode() + body


def unchunk(data: bytes) -> tuple[bytes, bool]:
    """Return the body of a chunked response, as far as it was read, and whether it is whole."""
    body = bytearray()
    while b"\r\n" in data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return bytes(body), True
        body += data[:length]
        data = data[length + 2 :]
    return bytes(body), False

"""Numbered requests in every client protocol, sent over raw sockets by many clients at once."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct

from asking import PATHS, make_body
from operate.usage.counting_upstreams import MODELS
from raw_http import request_bytes

KEY = "dgm_fake-client-key-for-usage-tests"
AGENTS = ("curl/8.1", "claude-cli/1.2 (x)", "OpenAI/Python 3.4")


class NumberedRequest(Struct, frozen=True):
    """A request of one client protocol for an upstream of another."""

    number: int
    client_protocol: str
    upstream_protocol: str
    stream: bool

    @property
    def id(self) -> str:
        return f"request-{self.number}"

    @property
    def requests_usage(self) -> bool:
        """Whether a streaming Chat client requests usage."""
        return self.number % 2 == 0

    @property
    def bytes(self) -> bytes:
        model = f"{self.upstream_protocol}/{MODELS[self.upstream_protocol]}"
        body = make_body(self.client_protocol, model, f"What is it? n={self.number}=", stream=self.stream)
        if not self.requests_usage:
            body.pop("stream_options", None)
        fields = (f"x-request-id: {self.id}", f"user-agent: {AGENTS[self.number % 3]}")
        return request_bytes(PATHS[self.client_protocol], msgspec.json.encode(body), *fields, key=KEY)


def mix_requests(count: int, start: int = 0) -> Iterator[NumberedRequest]:
    """Yield requests for every pair of protocols, whole and streamed, in turn."""
    pairs = [
        (client_protocol, upstream_protocol, stream)
        for client_protocol in PATHS
        for upstream_protocol in MODELS
        for stream in (False, True)
    ]
    for number in range(start, start + count):
        yield NumberedRequest(number, *pairs[number % len(pairs)])


async def send_all(
    port: int,
    requests: Iterable[NumberedRequest],
    clients: int = 24,
    on_response: Callable[[NumberedRequest, int], None] | None = None,
) -> dict[int, int]:
    """Send all requests; return the status of each response by its number."""
    left = iter(requests)
    statuses: dict[int, int] = {}

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in left:
            writer.write(request.bytes)
            statuses[request.number] = await read_status(reader)
            if on_response is not None:
                on_response(request, statuses[request.number])
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return statuses


async def read_status(reader: asyncio.StreamReader) -> int:
    """Read a whole response and return its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = head.lower()
    if b"transfer-encoding: chunked" in fields:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")
    else:
        length = fields.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
    return int(head[9:12])

"""Numbered requests in every client protocol, sent over raw sockets by many clients at once."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct

from usage.counting_upstreams import MODELS

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
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
        text = f"What is it? n={self.number}="
        body: dict[str, object] = {
            "model": f"{self.upstream_protocol}/{MODELS[self.upstream_protocol]}",
            "stream": self.stream,
        }
        if self.client_protocol == "responses":
            body["input"] = text
        else:
            body |= {"messages": [{"role": "user", "content": text}]}
        if self.client_protocol == "messages":
            body["max_tokens"] = 1000
        if self.client_protocol == "chat" and self.stream and self.requests_usage:
            body["stream_options"] = {"include_usage": True}
        data = msgspec.json.encode(body)
        head = (
            f"POST {PATHS[self.client_protocol]} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {KEY}\r\nx-request-id: {self.id}\r\n"
            f"user-agent: {AGENTS[self.number % 3]}\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data


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
            statuses[request.number] = await _status(reader)
            if on_response is not None:
                on_response(request, statuses[request.number])
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return statuses


async def _status(reader: asyncio.StreamReader) -> int:
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

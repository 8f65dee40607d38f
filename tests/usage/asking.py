"""Numbered questions in every client protocol, asked over raw sockets by many clients at once."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct

from usage.counted import MODELS

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
KEY = "dgm_fake-client-key-for-usage-tests"
AGENTS = ("curl/8.1", "claude-cli/1.2 (x)", "OpenAI/Python 3.4")


class Question(Struct, frozen=True):
    """Number `number`, from a client of one protocol for an upstream of another."""

    number: int
    asked: str
    spoken: str
    stream: bool

    @property
    def id(self) -> str:
        return f"question-{self.number}"

    @property
    def wants_counts(self) -> bool:
        """Whether a streaming Chat client asks for its usage."""
        return self.number % 2 == 0

    @property
    def bytes(self) -> bytes:
        text = f"What is it? n={self.number}="
        body: dict[str, object] = {"model": f"{self.spoken}/{MODELS[self.spoken]}", "stream": self.stream}
        if self.asked == "responses":
            body["input"] = text
        else:
            body |= {"messages": [{"role": "user", "content": text}]}
        if self.asked == "messages":
            body["max_tokens"] = 1000
        if self.asked == "chat" and self.stream and self.wants_counts:
            body["stream_options"] = {"include_usage": True}
        data = msgspec.json.encode(body)
        head = (
            f"POST {PATHS[self.asked]} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {KEY}\r\nx-request-id: {self.id}\r\n"
            f"user-agent: {AGENTS[self.number % 3]}\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data


def mixed(count: int, start: int = 0) -> Iterator[Question]:
    """Every pair of protocols, whole and streamed, in turn."""
    pairs = [(asked, spoken, stream) for asked in PATHS for spoken in MODELS for stream in (False, True)]
    for number in range(start, start + count):
        yield Question(number, *pairs[number % len(pairs)])


async def ask_all(
    port: int, questions: Iterable[Question], clients: int = 24, heard: Callable[[Question, int], None] | None = None
) -> dict[int, int]:
    """The status of each answer, by number."""
    left = iter(questions)
    statuses: dict[int, int] = {}

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for question in left:
            writer.write(question.bytes)
            statuses[question.number] = await _status(reader)
            if heard is not None:
                heard(question, statuses[question.number])
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return statuses


async def _status(reader: asyncio.StreamReader) -> int:
    """Reads a whole answer."""
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

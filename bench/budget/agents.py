"""Agents that ask until their budget is spent; each request is as large as its context."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Struct, field

PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}
MAX_OUTPUT = 200
CONTEXTS = (16_000, 64_000)  # bytes
MAX_PAUSE_S = 0.3  # however long the refusal says


class Crowd(Struct):
    """What became of the requests of all agents."""

    statuses: Counter[int] = field(default_factory=Counter)
    spent: int = 0  # agents that got the refusal of a spent budget


async def run_agents(ports: Sequence[int], key: str, protocol: str, count: int, seed: int) -> Crowd:
    """Let agents ask the gateways at these ports, in turns, until each gets the refusal of a spent budget."""
    crowd = Crowd()
    agents = (
        _run(ports[number % len(ports)], key, protocol, random.Random(seed + number), crowd) for number in range(count)
    )
    await asyncio.gather(*agents)
    return crowd


async def _run(port: int, key: str, protocol: str, chance: random.Random, crowd: Crowd) -> None:
    size = chance.randint(*CONTEXTS)
    while True:
        status, is_final = await _ask(port, key, protocol, size)
        crowd.statuses[status] += 1
        if is_final:
            crowd.spent += 1
            return
        if status != 200:
            await asyncio.sleep(chance.uniform(0, MAX_PAUSE_S))


def make_body(protocol: str, size: int) -> bytes:
    text = "word " * (size // 5)
    if protocol == "responses":
        fields: dict[str, object] = {"input": text, "max_output_tokens": MAX_OUTPUT, "store": False}
    else:
        fields = {"messages": [{"role": "user", "content": text}]}
        fields |= {"max_tokens": MAX_OUTPUT} if protocol == "messages" else {"max_completion_tokens": MAX_OUTPUT}
        fields |= {"stream_options": {"include_usage": True}} if protocol == "chat" else {}
    return msgspec.json.encode({"model": "up/m", "stream": True, **fields})


async def _ask(port: int, key: str, protocol: str, size: int) -> tuple[int, bool]:
    """Return the status of a reply that was read to its end, and whether no retry helps."""
    reply = await fetch(("127.0.0.1", port), key, protocol, size)
    fields = reply.partition(b"\r\n\r\n")[0].lower()
    return int(fields.split(b" ", 2)[1]), b"x-should-retry: false" in fields


async def fetch(address: tuple[str, int], key: str, protocol: str, size: int) -> bytes:
    """Send a request of this size, and return the reply with its head, once it has ended."""
    body = make_body(protocol, size)
    host, port = address
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST {PATHS[protocol]} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
        head += f"authorization: Bearer {key}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        return await reader.read(-1)
    finally:
        writer.close()

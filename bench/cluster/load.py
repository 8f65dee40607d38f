"""Agents that ask the replicas again and again while something happens to them, and what they got."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct

from bench.budget.agents import fetch
from bench.budget.scene import KEY
from bench.cluster.replica import Address

SIZE = 2_000  # bytes of a request
END = b"event: message_stop"
PAUSE_S = 0.5  # at most, after a refusal
PATIENCE_S = 15.0  # for streams that are under way at the end


class Reply(Struct, frozen=True):
    """What became of one request."""

    replica: int
    began: float
    ended: float
    status: int  # 0: there was no head
    is_whole: bool


class Load:
    """Runs as long as its context. `replies` has what ended until then."""

    def __init__(self, addresses: Sequence[Address], agents: int) -> None:
        self.replies: list[Reply] = []
        self._addresses = addresses
        self._agents = agents  # of each address
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Load":
        self._tasks = [
            asyncio.create_task(self._ask_on(replica, random.Random(f"{replica}/{agent}")))
            for replica in range(len(self._addresses))
            for agent in range(self._agents)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await asyncio.wait(self._tasks, timeout=PATIENCE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask_on(self, replica: int, chance: random.Random) -> None:
        while not self._is_over:
            reply = await ask(replica, self._addresses[replica])
            self.replies.append(reply)
            if reply.status != 200:
                await asyncio.sleep(chance.uniform(0, PAUSE_S))

    def find(self, replicas: Sequence[int]) -> Iterator[Reply]:
        return (reply for reply in self.replies if reply.replica in replicas)


async def ask(replica: int, address: Address) -> Reply:
    """Send one request; nothing that happens to it is raised."""
    began = time.monotonic()
    try:
        reply = await fetch(address, KEY, "messages", SIZE)
    except OSError:
        reply = b""
    return Reply(replica, began, time.monotonic(), int(reply[9:12] or b"0"), END in reply)

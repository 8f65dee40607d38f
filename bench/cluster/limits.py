"""How exact the limits of several replicas are: budgets, rates and slots, asked for by many agents at once."""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from bench.budget.agents import fetch
from bench.budget.scene import KEY, Setting, serve, wait_until_ready, write_settings
from bench.budget.upstream import BillingUpstream

SIZE = 2_000  # bytes of a request
LENGTHS_S = (0.05, 0.2)  # of streams
PAUSE_S = 0.3  # at most, after a refusal
BUDGET = 1e6  # dollars: not what is measured


class Taken(Struct, frozen=True):
    """What was admitted under a limit, and what is exact."""

    limit: int
    taken: int
    least: int
    most: int
    requests: int

    @property
    def is_exact(self) -> bool:
        return self.least <= self.taken <= self.most


async def measure_rate(setting: Setting, limit: int, seconds: float) -> Taken:
    """Return how many requests were admitted at `requests_per_min`: a minute's at once, then as they come back."""
    statuses, lasted, _ = await _ask_for(setting, f"requests_per_min = {limit}\n", seconds)
    # Each agent comes back after PAUSE_S at most, and asks for no more once the time is over.
    least = int(limit + limit * (seconds - 2 * PAUSE_S) / 60)
    return Taken(limit, statuses[200], least, int(limit + limit * lasted / 60) + 1, statuses.total())


async def measure_slots(setting: Setting, limit: int, seconds: float) -> Taken:
    """Return how many requests ran at the same time under `concurrent`, at most."""
    statuses, _, most_at_once = await _ask_for(setting, f"concurrent = {limit}\n", seconds)
    return Taken(limit, most_at_once, limit, limit, statuses.total())


async def _ask_for(setting: Setting, limits: str, seconds: float) -> tuple[Counter[int], float, int]:
    """Return how requests were answered, how long that took, and how many the upstream had at once."""
    upstream = BillingUpstream(seed=1, lengths_s=LENGTHS_S)
    await upstream.start()
    statuses: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        limited = Setting(
            store=setting.store,
            url=setting.url,
            gateways=setting.gateways,
            workers=1,
            protocol="messages",
            dollars=BUDGET,
            runs=1,
            shared=setting.shared,
            limits=limits,
        )
        write_settings(directory, limited, upstream.port, BUDGET)
        with serve(directory, limited) as ports:
            await wait_until_ready(ports)
            began = time.monotonic()
            agents = (_ask_until(began + seconds, ports, number, statuses) for number in range(setting.agents))
            await asyncio.gather(*agents)
            lasted = time.monotonic() - began
    await upstream.stop()
    return statuses, lasted, upstream.bill.most_at_once


async def _ask_until(until: float, ports: Sequence[int], number: int, statuses: Counter[int]) -> None:
    chance = random.Random(number)
    while time.monotonic() < until:
        reply = await fetch(("127.0.0.1", ports[number % len(ports)]), KEY, "messages", SIZE)
        status = int(reply[9:12])
        statuses[status] += 1
        if status != 200:
            await asyncio.sleep(chance.uniform(0, PAUSE_S))

"""How long a request waits for a server that hangs: until its breaker is open, and afterwards."""

import asyncio
import os
import signal
import time

from msgspec import Struct

from bench.cluster.load import ask
from bench.cluster.scene import Cluster, Plan, run_cluster
from bench.tree import find_tree

LENGTHS_S = (0.0, 0.0)  # the upstream answers at once
CALM_S = 1.0
PAUSE_S = 0.02  # between two requests
ALLOWED_MS = {True: 100.0, False: 2100.0}  # for Valkey, and for PostgreSQL
OPEN_S = {True: 1.0, False: 7.0}  # by then the breaker is open: three deadlines, and what goes by between them
FROZEN_S = 2.0  # after that
OVERHEAD_MS = 20.0  # a request of its own may take that much longer than usual


class Waits(Struct, frozen=True):
    """Times of requests in milliseconds; `usual_ms` is the median before."""

    usual_ms: float
    longest_ms: float
    longest_open_ms: float  # once the breaker is open
    requests: int
    is_valkey: bool

    @property
    def is_allowed(self) -> bool:
        slack_ms = self.usual_ms + OVERHEAD_MS
        return self.longest_ms <= ALLOWED_MS[self.is_valkey] + slack_ms and self.longest_open_ms <= 2 * slack_ms


async def measure_waits(*, is_valkey: bool) -> Waits:
    """Freeze Valkey, or PostgreSQL where rates and slots are in Valkey, while one client asks."""
    async with run_cluster(Plan(1, 1, has_valkey=True), LENGTHS_S) as cluster:
        before = await _ask_for(cluster, CALM_S)
        server = cluster.valkey if is_valkey else cluster.postgres
        assert server is not None
        pids = find_tree(server.pid)
        _send(pids, signal.SIGSTOP)
        began = time.monotonic()
        try:
            until_open = await _ask_for(cluster, OPEN_S[is_valkey])
            assert time.monotonic() - began >= OPEN_S[is_valkey]
            opened = await _ask_for(cluster, FROZEN_S)
        finally:
            _send(pids, signal.SIGCONT)
        await cluster.wait_until_ready([0])
    return Waits(
        usual_ms=sorted(before)[len(before) // 2],
        longest_ms=max(until_open),
        longest_open_ms=max(opened),
        requests=len(until_open) + len(opened),
        is_valkey=is_valkey,
    )


async def _ask_for(cluster: Cluster, seconds: float) -> list[float]:
    until = time.monotonic() + seconds
    times = []
    while time.monotonic() < until:
        reply = await ask(0, cluster.addresses[0])
        times.append((reply.ended - reply.began) * 1000)
        await asyncio.sleep(PAUSE_S)
    return times


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)

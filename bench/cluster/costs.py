"""What a request costs a replica, PostgreSQL and Valkey, without limits and with them."""

import asyncio
import time
from collections.abc import Sequence

from msgspec import Struct

from bench.cluster.load import Reply, ask
from bench.cluster.scene import Cluster, Plan, run_cluster
from bench.tree import tree_cpu_s

LENGTHS_S = (0.0, 0.0)  # the upstream answers at once
WARM_S = 3.0
PAUSE_S = 0.05  # of each agent, between two requests: nothing waits for a core
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


class Cost(Struct, frozen=True):
    """Of one request, on average; times in milliseconds, CPU in microseconds."""

    requests: int
    gateway_us: float
    postgres_us: float
    valkey_us: float
    p50_ms: float
    p99_ms: float
    connections: int  # of the replica to PostgreSQL


async def measure_cost(plan: Plan, seconds: float) -> Cost:
    """Let the agents of one replica ask for some seconds."""
    async with run_cluster(plan, LENGTHS_S) as cluster:
        await _ask_for(cluster, plan.agents, WARM_S)
        before = _read_cpu(cluster)
        replies = await _ask_for(cluster, plan.agents, seconds)
        spent = [after - was for after, was in zip(_read_cpu(cluster), before, strict=True)]
        connections = await cluster.ledger.fetch_value(CONNECTIONS)
    assert all(reply.is_whole for reply in replies)
    waits = sorted((reply.ended - reply.began) * 1000 for reply in replies)
    count = len(replies)
    gateway, postgres, valkey = (cpu_s * 1e6 / count for cpu_s in spent)
    return Cost(count, gateway, postgres, valkey, waits[count // 2], waits[count * 99 // 100], connections)


def _read_cpu(cluster: Cluster) -> Sequence[float]:
    """Return what the replica, PostgreSQL and Valkey have worked, in seconds."""
    valkey_s = tree_cpu_s(cluster.valkey.pid) if cluster.valkey else 0.0
    return tree_cpu_s(cluster.replicas[0].pid), tree_cpu_s(cluster.postgres.pid), valkey_s


async def _ask_for(cluster: Cluster, agents: int, seconds: float) -> list[Reply]:
    until = time.monotonic() + seconds
    replies: list[Reply] = []

    async def ask_until() -> None:
        while time.monotonic() < until:
            replies.append(await ask(0, cluster.addresses[0]))
            await asyncio.sleep(PAUSE_S)

    await asyncio.gather(*(ask_until() for _ in range(agents)))
    return replies

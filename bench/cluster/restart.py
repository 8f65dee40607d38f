"""A rolling restart: each replica in turn is stopped and started again behind a balancer, under load."""

import asyncio
import time
from collections.abc import Iterator

from msgspec import Struct

from bench.cluster.ledger import Left
from bench.cluster.load import Load
from bench.cluster.scene import Cluster

BEFORE_S = 1.0
SETTLE_S = 60.0


class Restarted(Struct, frozen=True):
    """What clients and the store saw of it."""

    requests: int
    failed: int  # not a whole reply with status 200
    lost_rows: int
    left: Left
    codes: list[int]  # with which the stopped replicas ended
    seconds: float

    def list_problems(self) -> Iterator[str]:
        if self.failed:
            yield f"{self.failed} requests failed"
        if self.lost_rows:
            yield f"{self.lost_rows} rows are missing"
        yield from self.left.list_problems()
        if any(self.codes):
            yield f"the replicas ended with {self.codes}"


async def restart_all(cluster: Cluster, port: int, agents: int) -> Restarted:
    """Restart every replica while agents ask the balancer at this port."""
    began, codes = time.monotonic(), []
    before, calls = await cluster.ledger.read(), cluster.upstream.bill.requests
    async with Load([("127.0.0.1", port)] * len(cluster.replicas), agents) as load:
        await asyncio.sleep(BEFORE_S)
        for number, replica in enumerate(cluster.replicas):
            replica.stop()
            codes.append(await asyncio.to_thread(replica.wait))
            replica.start()
            await cluster.wait_until_ready([number])
        await asyncio.sleep(BEFORE_S)
    seconds = time.monotonic() - began
    left = await cluster.ledger.settle(SETTLE_S)
    return Restarted(
        requests=len(load.replies),
        failed=sum(not reply.is_whole for reply in load.replies),
        lost_rows=max(0, cluster.upstream.bill.requests - calls - (left.rows - before.rows)),
        left=left,
        codes=codes,
        seconds=seconds,
    )

"""What is done to a cluster under load, and what must hold then."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

from msgspec import Struct, field

from bench.cluster import network
from bench.cluster.ledger import Left
from bench.cluster.load import Load
from bench.cluster.scene import Cluster, Health, find_faketime, read_health

HIT = 0  # the replica that something is done to
CALM_S = 3.0  # of load before a fault and after it
HELD_S = 36.0  # 35, and what looking takes
SETTLE_S = 60.0
RECOVER_S = 10.0
AHEAD_S = 70


class Fault(Struct, frozen=True):
    """Something that happens to a cluster, and ends."""

    name: str
    seconds: float
    begin: Callable[[Cluster], Awaitable[object]]
    end: Callable[[Cluster], Awaitable[object]]
    hits: Sequence[int] = ()  # replicas that may harm their own requests
    refuses: bool = False  # limits cannot be counted meanwhile: new requests may be refused
    says: Sequence[Health] = (Health(200, "ready"),)  # what the other replicas may say at /ready, at some time each
    hit_says: Health | None = None  # what the replica itself must say
    needs: str = ""  # "valkey", "links" or "faketime"


class Finding(Struct):
    """What was seen of one fault."""

    fault: Fault
    requests: int = 0
    refused: int = 0  # of replicas that nothing was done to
    broken: int = 0  # streams of replicas that nothing was done to
    held_s: float = 0.0  # how long requests that ran at its begin held their leases
    says: Counter[str] = field(default_factory=Counter)
    recovered_s: float = 0.0
    lost_rows: int = 0
    left: Left | None = None  # once every request has ended

    def list_problems(self) -> Iterator[str]:
        fault = self.fault
        if self.refused and not fault.refuses:
            yield f"{self.refused} requests were refused"
        if self.broken:
            yield f"{self.broken} streams of other replicas were harmed"
        if self.held_s > HELD_S:
            yield f"leases were held for {self.held_s:.1f} s"
        if self.recovered_s > RECOVER_S:
            yield f"it took {self.recovered_s:.1f} s to recover"
        if self.lost_rows:
            yield f"{self.lost_rows} rows are missing"
        if self.left is not None:
            yield from self.left.list_problems()
        for health in (*fault.says, *([fault.hit_says] if fault.hit_says else [])):
            if _show(health) not in self.says:
                yield f"/ready never said {_show(health)}"


async def run_fault(cluster: Cluster, fault: Fault, agents: int, calm_s: float = CALM_S) -> Finding:
    """Let a fault happen under load; return what was seen, once all requests have their rows."""
    finding = Finding(fault)
    before, calls = await cluster.ledger.read(), cluster.upstream.bill.requests
    async with Load(cluster.addresses, agents) as load:
        await asyncio.sleep(calm_s)
        now_ms = await cluster.ledger.read_clock()
        holding = asyncio.create_task(cluster.ledger.measure_held(now_ms, fault.seconds + SETTLE_S))
        await fault.begin(cluster)
        listening = asyncio.create_task(_listen(cluster, finding))
        await asyncio.sleep(fault.seconds)
        await fault.end(cluster)
        finding.recovered_s = await cluster.wait_until_ready(range(len(cluster.replicas)), 3 * RECOVER_S)
        await _end(listening)
        await asyncio.sleep(calm_s)
    left = finding.left = await cluster.ledger.settle(SETTLE_S)
    finding.held_s = await holding
    others = [replica for replica in range(len(cluster.replicas)) if replica not in fault.hits]
    finding.requests = len(load.replies)
    finding.refused = sum(reply.status not in (0, 200) for reply in load.find(others))
    finding.broken = sum(reply.status in (0, 200) and not reply.is_whole for reply in load.find(others))
    finding.lost_rows = max(0, cluster.upstream.bill.requests - calls - (left.rows - before.rows))
    return finding


async def _listen(cluster: Cluster, finding: Finding) -> None:
    """Ask /ready of all replicas, again and again."""
    while True:
        for address in cluster.addresses:
            finding.says[_show(await read_health(address))] += 1
        await asyncio.sleep(0.2)


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _show(health: Health) -> str:
    return f"{health.status} {health.word}" if health.status else "nothing"


# What is done.


async def _do_nothing(cluster: Cluster) -> None:
    return


async def _kill(cluster: Cluster) -> None:
    cluster.replicas[HIT].kill()


async def _start(cluster: Cluster) -> None:
    cluster.replicas[HIT].start()


async def _freeze(cluster: Cluster) -> None:
    cluster.replicas[HIT].freeze()


async def _thaw(cluster: Cluster) -> None:
    cluster.replicas[HIT].thaw()


async def _cut(cluster: Cluster) -> None:
    network.cut(cluster.replicas[HIT].site)


async def _reconnect(cluster: Cluster) -> None:
    network.reconnect(cluster.replicas[HIT].site)


async def _set_clock(cluster: Cluster) -> None:
    ahead = {"LD_PRELOAD": find_faketime(), "FAKETIME": f"+{AHEAD_S}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    await _restart(cluster, ahead)


async def _set_clock_back(cluster: Cluster) -> None:
    await _restart(cluster, {})


async def _restart(cluster: Cluster, environ: dict[str, str]) -> None:
    replica = cluster.replicas[HIT]
    replica.stop()
    await asyncio.to_thread(replica.wait)
    replica.start(environ)


async def _stop_postgres(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.postgres.stop)


async def _start_postgres(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.postgres.start)


async def _freeze_valkey(cluster: Cluster) -> None:
    assert cluster.valkey is not None
    cluster.valkey.freeze()


async def _thaw_valkey(cluster: Cluster) -> None:
    assert cluster.valkey is not None
    cluster.valkey.thaw()


async def _flush_valkey(cluster: Cluster) -> None:
    assert cluster.valkey is not None
    await asyncio.to_thread(cluster.valkey.flush)


async def _kill_valkey(cluster: Cluster) -> None:
    assert cluster.valkey is not None
    await asyncio.to_thread(cluster.valkey.kill)


async def _start_valkey(cluster: Cluster) -> None:
    assert cluster.valkey is not None
    await asyncio.to_thread(cluster.valkey.start)


def find_fault(name: str) -> Fault:
    [found] = [fault for fault in FAULTS if fault.name == name]
    return found


DEGRADED, AHEAD = Health(200, "degraded"), Health(503, "unready")
FAULTS = (
    Fault("replica killed", 36, _kill, _start, hits=[HIT]),
    Fault("replica frozen 40 s", 40, _freeze, _thaw, hits=[HIT]),
    Fault("replica's link cut 40 s", 40, _cut, _reconnect, hits=[HIT], needs="links"),
    Fault("Valkey frozen 10 s", 10, _freeze_valkey, _thaw_valkey, says=[DEGRADED], needs="valkey"),
    Fault("Valkey flushed", 1, _flush_valkey, _do_nothing, needs="valkey"),
    Fault("Valkey restarted", 5, _kill_valkey, _start_valkey, says=[DEGRADED], needs="valkey"),
    Fault("PostgreSQL restarted", 5, _stop_postgres, _start_postgres, refuses=True, says=[DEGRADED]),
    Fault("replica's clock 70 s ahead", 8, _set_clock, _set_clock_back, hits=[HIT], hit_says=AHEAD, needs="faketime"),
)

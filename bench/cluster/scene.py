"""A cluster of gateways on one PostgreSQL, with Valkey or without, that agents ask while faults happen to it.

The servers are those of the tests: run it with `tests` in PYTHONPATH.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.budget.scene import provider_section
from bench.budget.upstream import PRICE_LINES, BillingUpstream
from bench.cluster.ledger import Ledger
from bench.cluster.load import ask
from bench.cluster.network import SERVERS, make_site
from bench.cluster.replica import Address, Replica, Site
from dragoman.store.valkey import PREFIX
from dragoman.store.valkey_meter import BASE
from postgres import Postgres
from valkey_server import ValkeyServer

START_S = 60.0
POLL_S = 0.1
LENGTHS_S = (0.5, 3.0)  # of streams
SETTINGS = """
[server]
drain_s = 30
[retry]
attempts = 1
[store]
url = "{url}"
{shared}
{limits}
{prices}
{provider}
"""
LIMITS = """
[limits]
usd_per_total = 1000000
requests_per_min = 1000000
concurrent = 100000
"""
SLOTS = f"{PREFIX}{BASE}slots:all:concurrent"


class Plan(Struct, frozen=True):
    """How large a cluster is, and what it has."""

    replicas: int = 3
    agents: int = 50  # of each replica
    has_valkey: bool = False
    has_limits: bool = True
    has_links: bool = False  # each replica is in a network namespace
    first_site: int = 1  # the number of the first of these


class Health(Struct, frozen=True):
    """What /ready says."""

    status: int  # 0: nothing answered
    word: str = ""  # "ready", "degraded", ...


class Cluster:
    """The servers and the replicas, by name, for what is done to them."""

    def __init__(self, upstream: BillingUpstream, postgres: Postgres, valkey: ValkeyServer | None, url: str) -> None:
        self.upstream = upstream
        self.postgres = postgres
        self.valkey = valkey
        self.ledger = Ledger(url, self._count_slots)
        self.replicas: list[Replica] = []

    def _count_slots(self) -> int:
        return 0 if self.valkey is None else int(self.valkey.execute("HLEN", SLOTS).removeprefix(b":"))

    @property
    def addresses(self) -> Sequence[Address]:
        return [replica.address for replica in self.replicas]

    async def wait_until_ready(self, replicas: Sequence[int], patience_s: float = START_S) -> float:
        """Return after how many seconds the last of these replicas said that it is ready, and served a request."""
        return max(await asyncio.gather(*(self._wait_until_ready(replica, patience_s) for replica in replicas)))

    async def _wait_until_ready(self, replica: int, patience_s: float) -> float:
        address, began = self.addresses[replica], time.monotonic()
        while (since := time.monotonic() - began) < patience_s:
            if await read_health(address) == Health(200, "ready") and (await ask(replica, address)).is_whole:
                return since
            await asyncio.sleep(POLL_S)
        return patience_s


@asynccontextmanager
async def run_cluster(plan: Plan, lengths_s: tuple[float, float] = LENGTHS_S) -> AsyncIterator[Cluster]:
    """Start a cluster, and end it."""
    host = SERVERS if plan.has_links else "127.0.0.1"
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-cluster-")))
        upstream = BillingUpstream(seed=1, lengths_s=lengths_s)
        await upstream.start(host)
        stack.push_async_callback(upstream.stop)
        postgres = await asyncio.to_thread(Postgres, host)
        stack.callback(postgres.remove)
        valkey = ValkeyServer(host) if plan.has_valkey else None
        if valkey is not None:
            stack.callback(valkey.remove)
        url = await asyncio.to_thread(postgres.database)
        cluster = Cluster(upstream, postgres, valkey, url)
        settings = SETTINGS.format(
            url=url,
            shared=f'shared = "{valkey.url}"' if valkey else "",
            limits=LIMITS if plan.has_limits else "",
            prices=PRICE_LINES,
            provider=provider_section("messages", f"http://{host}:{upstream.port}/v1"),
        )
        for number in range(plan.replicas):
            site = stack.enter_context(make_site(plan.first_site + number)) if plan.has_links else Site()
            cluster.replicas.append(stack.enter_context(Replica(directory / str(number), settings, site)))
            await cluster.wait_until_ready([number])  # the first one makes the tables
        yield cluster


async def read_health(address: Address, patience_s: float = 2.0) -> Health:
    """Return what /ready says now."""
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            reply = await reader.read(-1)
            writer.close()
    except (OSError, TimeoutError):
        return Health(0)
    found = msgspec.json.decode(reply.partition(b"\r\n\r\n")[2] or b"{}", type=dict[str, object])
    return Health(int(reply[9:12] or b"0"), str(found.get("status", "")))


def find_faketime() -> str:
    """Return the library that shows a process another time; empty if it is not installed."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")) if shutil.which("faketime") else []
    return str(found[0]) if found else ""

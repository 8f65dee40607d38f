"""`python -m bench.meter`: what limits cost a request, in CPU, with each kind of meter.

A request is an admission under three limits and a settlement; that its row is written is noted for many rows together,
as it is where they are stored. In Valkey, a request is an admission under a rate and slots, and a settlement.
"""

import argparse
import asyncio
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC
from pathlib import Path

from dragoman.store import open_store
from dragoman.store.meter import Admit, Hold, HoldKind, Meter, RowsWritten, Settle
from dragoman.store.valkey import Valkey, parse_address
from dragoman.tenancy.counters import Counters
from dragoman.tenancy.memory_meter import MemoryMeter
from dragoman.tenancy.opened_meter import make_meter, make_postgres_meter, pair_with_shared
from dragoman.tenancy.shared_meter import MeterPlace

LIMIT = 10**15
USD = "key:key_1:usd:total"
HOLDS = (
    Hold("key:key_1:requests_per_min", HoldKind.RATE, LIMIT, 1),
    Hold("key:key_1:concurrent", HoldKind.SLOT, LIMIT, 1),
    Hold(USD, HoldKind.WINDOW, LIMIT, 10**7),
)
SHARED_HOLDS = HOLDS[:2]
CHARGE = b"c" * 300
ROWS_AT_ONCE = 40  # are written together at 200 requests a second
WORKERS = 2
ROUNDS = 10  # of which the best counts: others use this machine too
NUMBERS = itertools.count()  # of rounds, so that no lease is admitted twice
DETAILS = Path("/proc")


async def run_requests(meter: Meter, at_once: int, count: int, holds: Sequence[Hold]) -> None:
    """Make requests of some tasks."""
    first = next(NUMBERS) * count
    numbers = iter(range(first, first + count))
    ended: list[str] = []

    async def work() -> None:
        for number in numbers:
            lease = f"{meter.process}-{at_once}-{number}"
            await meter.apply(
                [Admit(lease, meter.process, tuple(holds), charge=CHARGE if meter.keeps_charges else b"")]
            )
            is_priced = holds is HOLDS
            meter.post(Settle(lease, {USD: 10**6} if is_priced else {}))
            if is_priced:
                ended.append(lease)
            if len(ended) == ROWS_AT_ONCE:
                meter.post(RowsWritten(tuple(ended)))
                ended.clear()
            await asyncio.sleep(0)

    await asyncio.gather(*(work() for _ in range(at_once)))
    meter.post(RowsWritten(tuple(ended)))
    await meter.read([holds[-1].counter])


async def measure(
    name: str, meter: Meter, at_once: int, count: int, owner: int | None = None, holds: Sequence[Hold] = HOLDS
) -> None:
    """Print what a request costs this process and, if there is one, the owner of the meter."""
    count //= ROUNDS
    await run_requests(meter, at_once, count, holds)
    measured = [
        await measure_round(lambda: run_requests(meter, at_once, count, holds), count, owner) for _ in range(ROUNDS)
    ]
    here, there, passed = (min(column) * 1e6 for column in zip(*measured, strict=True))
    print(
        f"{name:<12} {at_once:>3} at once: {here:7.1f} us CPU here, {there:6.1f} us there; "
        f"{passed * at_once / 1000:7.3f} ms for one, {1e6 / passed:8.0f} a second"
    )


async def measure_round(
    run: Callable[[], Awaitable[None]], count: int, owner: int | None
) -> tuple[float, float, float]:
    """Return the seconds for a request: of CPU here and there, and that pass."""
    owned, used, since = read_cpu_s(owner), time.process_time(), time.perf_counter()
    await run()
    passed = time.perf_counter() - since
    here, there = time.process_time() - used, read_cpu_s(owner) - owned
    return here / count, there / count, passed / count


def measure_counters(count: int) -> None:
    """Print what a request costs without an event loop."""
    counters = Counters(lambda: time.monotonic_ns() // 1_000_000, has_rows=False)
    rounds = []
    for _ in range(ROUNDS):
        begun, used = next(NUMBERS), time.process_time()
        for number in range(count):
            lease = f"lease-{begun}-{number}"
            counters.apply(Admit(lease, "bench", HOLDS))
            counters.apply(Settle(lease, {USD: 10**6}))
        rounds.append((time.process_time() - used) / count)
    print(f"{'counters':<12}              {min(rounds) * 1e6:7.1f} us CPU")


def read_cpu_s(pid: int | None) -> float:
    """Return the CPU time of another process."""
    if pid is None:
        return 0.0
    fields = (DETAILS / str(pid) / "schedstat").read_text().split()
    return int(fields[0]) / 1e9


async def measure_memory(count: int) -> None:
    meter = MemoryMeter(None, lambda: UTC)
    await measure("memory", meter, 1, count)


async def measure_asking(count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/bench.db"
        words = [sys.executable, "-m", "bench.meter", "--own", url]
        owner = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        assert owner.stdout is not None
        await owner.stdout.readline()
        async with await open_store(url) as store:
            meter = make_meter(store, lambda: UTC, MeterPlace(1, WORKERS))
            meter.start()
            for at_once in (1, 16, 64):
                await measure("asking", meter, at_once, count, owner.pid)
            await meter.stop()
        owner.send_signal(signal.SIGKILL)
        await owner.wait()


async def measure_postgres(url: str, count: int) -> None:
    async with await open_store(url) as store:
        meter = make_postgres_meter(store, lambda: UTC)
        meter.start()
        for at_once in (1, 8, 64):
            await measure("postgresql", meter, at_once, count)
        await meter.stop()


async def measure_valkey(shared_url: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with await open_store(f"sqlite:///{directory}/bench.db") as store:
            shared = Valkey(parse_address(shared_url))
            meter = pair_with_shared(shared, make_meter(store, lambda: UTC))
            for at_once in (1, 16, 64):
                await measure("valkey", meter, at_once, count, holds=SHARED_HOLDS)
            await meter.stop()
            await shared.stop()


async def own(url: str) -> None:
    """Have the meter until this process is killed."""
    async with await open_store(url) as store:
        meter = make_meter(store, lambda: UTC, MeterPlace(0, WORKERS))
        meter.start()
        await meter.read([USD])
        print("ready", flush=True)
        await asyncio.Event().wait()


def new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.meter", description=__doc__)
    parser.add_argument("--own", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--postgres", metavar="URL", help="measure the meter in this database, too")
    parser.add_argument("--valkey", metavar="URL", help="measure the meter in this Valkey, too")
    parser.add_argument("--requests", type=int, default=20_000)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        if options.own:
            runner.run(own(options.own))
            return
        print(f"{os.cpu_count()} cores")
        measure_counters(options.requests)
        runner.run(measure_memory(options.requests * 5))
        runner.run(measure_asking(options.requests))
        if options.postgres:
            runner.run(measure_postgres(options.postgres, options.requests // 10))
        if options.valkey:
            runner.run(measure_valkey(options.valkey, options.requests))


if __name__ == "__main__":
    main()

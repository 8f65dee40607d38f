"""The meter in PostgreSQL by itself: a database that does not answer, calls at the same time, and what is removed."""

import asyncio
import random
import time
from typing import TYPE_CHECKING

import asyncpg
import pytest

from dragoman.store import open_store
from dragoman.store.meter import Admitted, Refused, Settle, Unavailable
from dragoman.store.postgres_meter import MAX_MISSES, PostgresMeter
from dragoman.tenancy.opened_meter import make_postgres_meter
from tenancy.meters import (
    ALL_USD,
    SLOTS,
    USD,
    MeterRig,
    get_utc,
    rate,
    run_postgres_meter,
    slot,
    usd,
    wait_until_admitted,
)

if TYPE_CHECKING:
    from postgres import Postgres


@pytest.fixture
def url(postgres: "Postgres") -> str:
    return postgres.empty_database()


async def count_processes(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM dragoman.meter_processes"))
    finally:
        await connection.close()


@pytest.mark.parametrize("is_settled", [True, False])
async def test_a_process_that_stops_is_watched_only_as_long_as_it_has_leases(url: str, is_settled: bool) -> None:
    async with run_postgres_meter(url) as rig:
        assert isinstance(await rig.admit("a", usd(1000, 10)), Admitted)
        assert await count_processes(url) == 1
        if is_settled:
            rig.meter.post(Settle("a", {USD: 0}))
    assert await count_processes(url) == (0 if is_settled else 1)


@pytest.mark.rest
@pytest.mark.alone
async def test_a_database_that_does_not_answer_is_probed_and_settlements_wait_for_it(url: str) -> None:
    async with run_postgres_meter(url) as rig:
        assert isinstance(rig.meter, PostgresMeter)
        assert isinstance(await rig.admit("a", usd(1000, 10)), Admitted)
        other = await asyncpg.connect(url)
        async with other.transaction():
            await other.execute("LOCK TABLE dragoman.meter_counters IN ACCESS EXCLUSIVE MODE")
            rig.meter.post(Settle("a", {USD: 7}))
            for number in range(MAX_MISSES):
                began = time.monotonic()
                assert isinstance(await rig.admit_once(f"b{number}", usd(1000, 10)), Unavailable)
                assert time.monotonic() - began < 3
            async with asyncio.timeout(30):
                while not rig.meter.is_out:
                    await rig.admit_once("c", usd(1000, 10))
            began = time.monotonic()
            assert isinstance(await rig.admit_once("d", usd(1000, 10)), Unavailable)
            assert time.monotonic() - began < 0.1
        await other.close()
        await wait_for_admission(rig)
        assert (await rig.level(USD)).spent == 7
        assert (await rig.level(USD)).running == 1  # nothing of those that were not answered


async def wait_for_admission(rig: MeterRig) -> None:
    for _ in range(300):
        if isinstance(await rig.admit_once("e", usd(1000, 10)), Admitted):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the database was never asked again")


async def test_calls_of_several_gateways_never_deadlock_nor_exceed_a_limit(url: str) -> None:
    cost, limit = 50, 5_000
    scopes = [USD.replace("key_1", f"key_{number}") for number in range(4)]
    async with await open_store(url) as store:
        rigs = [MeterRig(make_postgres_meter(store, get_utc), store) for _ in range(3)]
        spent = 0

        async def work(rig: MeterRig, name: str) -> None:
            nonlocal spent
            drawn = random.Random(name)
            for number in range(1000):
                lease = f"{name}-{number}"
                keys = drawn.sample(scopes, 2)
                holds = [usd(10**9, cost, key) for key in keys] + [usd(limit, 2 * cost, ALL_USD), slot(100)]
                result = await rig.admit(lease, *drawn.sample(holds, len(holds)))
                assert isinstance(result, (Admitted, Refused)), result
                if isinstance(result, Refused):
                    if result.is_spent:
                        return
                    await asyncio.sleep(0.01)
                    continue
                await rig.ask(Settle(lease, {ALL_USD: cost, **dict.fromkeys(keys, cost)}))
                spent += cost

        await asyncio.gather(*(work(rig, f"{at}-{n}") for at, rig in enumerate(rigs) for n in range(8)))
        assert limit <= spent <= limit + cost
        assert (await rigs[0].level(ALL_USD)).spent == spent
        levels = [await rigs[1].level(counter) for counter in (*scopes, SLOTS)]
        assert [(level.reserved, level.running) for level in levels] == [(0, 0)] * 5
        assert sum(level.spent for level in levels) == 2 * spent
        for rig in rigs:
            assert isinstance(rig.meter, PostgresMeter)
            await rig.meter.stop()


async def test_a_rate_goes_on_though_the_clock_of_the_server_was_set_back(url: str) -> None:
    async with run_postgres_meter(url) as rig:
        assert isinstance(await rig.admit("a", rate(600, 600)), Admitted)
        other = await asyncpg.connect(url)
        await other.execute("UPDATE dragoman.meter_counters SET at_ms = at_ms + 3600000")
        await other.close()
        await wait_until_admitted(rig)


async def test_what_is_past_is_removed(url: str) -> None:
    async with run_postgres_meter(url) as rig:
        assert isinstance(rig.meter, PostgresMeter)
        past = "key:key_1:usd:2020-01"
        await rig.admit("a", usd(1000, 10, past), usd(1000, 10), rate(10))
        await rig.meter.tidy()
        other = await asyncpg.connect(url)
        count = "SELECT count(*) FROM dragoman.meter_counters WHERE counter = $1"
        assert await other.fetchval(count, past) == 1  # a request that began in it still runs
        await rig.ask(Settle("a", {}))
        await rig.meter.tidy()
        assert await other.fetchval(count, past) == 0
        assert await other.fetchval(count, USD) == 1
        await other.execute("UPDATE dragoman.meter_leases SET at_ms = 0")
        await rig.meter.tidy()
        assert await other.fetchval("SELECT count(*) FROM dragoman.meter_leases") == 0
        await other.close()

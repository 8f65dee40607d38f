"""Processes that are killed or stopped while they count: what is spent stays the sum of the rows."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dragoman.store import Store, open_store
from dragoman.store.meter import GONE, Admit, Admitted, Settle, Unavailable
from dragoman.store.postgres_meter import MAX_SILENT as MAX_SILENT_IN_POSTGRES
from dragoman.store.postgres_meter import PostgresMeter
from dragoman.store.valkey_meter import BEAT_S
from dragoman.tenancy.memory_meter import MAX_SILENT, MemoryMeter
from dragoman.tenancy.opened_meter import RunningMeter, make_meter, make_postgres_meter
from dragoman.tenancy.paired_meter import PairedMeter
from dragoman.tenancy.shared_meter import MeterPlace, SharedMeter
from dragoman.tenancy.windows import find_spending
from store.rows import EVER
from tenancy.meter_load import HELD, OWNER, RESERVED, SHARED, MeterLoad
from tenancy.meters import (
    ALL_USD,
    SLOTS,
    USD,
    MeterRig,
    get_utc,
    make_charge,
    make_row,
    run_memory_meter,
    run_paired_meter,
    slot,
    usd,
)
from valkey_server import ValkeyServer
from waiting import PATIENCE_S

if TYPE_CHECKING:
    from postgres import Postgres

LONGEST_LEASE_S = 45.0  # 35 on a machine that does nothing else
STOPPED_S = 40.0
TESTS = Path(__file__).parent.parent


@pytest.fixture
def postgres_url(postgres: "Postgres") -> str:
    return postgres.empty_database()


class MeterProcess:
    """A process with a meter."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def end(self) -> None:
        self._process.terminate()
        await self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)


async def start_process(url: str, worker: int, workers: int, role: str = "load", shared: str = "") -> MeterProcess:
    words = ["-m", "tenancy.meter_load", url, str(worker), str(workers), role]
    environ = {**os.environ, "PYTHONPATH": str(TESTS)} | ({SHARED: shared} if shared else {})
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, env=environ, cwd=TESTS
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return MeterProcess(process)


@asynccontextmanager
async def running(meter: RunningMeter, store: Store) -> AsyncIterator[MeterRig]:
    meter.start()
    try:
        yield MeterRig(meter, store)
    finally:
        await meter.stop()


async def wait_for(condition: Callable[[], object]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 60 s")


async def wait_for_requests(load: MeterLoad) -> None:
    before = load.done
    await wait_for(lambda: load.done > before + 50)


async def expect_rows(rig: MeterRig) -> None:
    """Expect that nothing is held soon, and that what is spent is the sum of the rows."""
    for _ in range(1200):
        if await has_rows_alone(rig):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{await rig.meter.read([USD, ALL_USD, SLOTS])} are not the rows")


async def has_rows_alone(rig: MeterRig) -> bool:
    levels = await rig.meter.read([USD, ALL_USD, SLOTS])
    rows = [await rig.store.read_spending(find_spending(counter, get_utc(), 0)) for counter in (USD, ALL_USD)]
    return [(level.spent, level.reserved, level.running) for level in levels] == [
        *((spent, 0, 0) for spent in rows),
        (0, 0, 0),
    ]


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.rest)])
def test_a_killed_worker_is_charged_at_once(tmp_path: Path, kills: int) -> None:
    asyncio.run(kill_workers(f"sqlite:///{tmp_path}/dragoman.db", kills))


async def kill_workers(url: str, kills: int) -> None:
    async with await open_store(url) as store, running(make_meter(store, get_utc, MeterPlace(0, 3)), store) as rig:
        other = await start_process(url, 2, 3)
        for _ in range(kills):
            process = await start_process(url, 1, 3)
            await asyncio.sleep(0.5)
            await process.kill()
        await other.end()
        await expect_rows(rig)
        rows = [row async for row in list_interrupted(store)]
        assert (kills + 1) * HELD <= len(rows) <= (kills + 1) * (HELD + 2)
        assert set(rows) <= {RESERVED}


async def list_interrupted(store: Store) -> AsyncIterator[int]:
    for row in await store.read_usage_rows(EVER):
        if row.outcome == "interrupted":
            assert row.usage_source == "estimated"
            yield row.cost_nano_usd or 0


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.rest)])
async def test_the_worker_that_has_the_meter_may_be_killed(tmp_path: Path, kills: int) -> None:
    url = f"sqlite:///{tmp_path}/dragoman.db"
    owner = await start_process(url, 0, 2, OWNER)
    async with await open_store(url) as store, running(make_meter(store, get_utc, MeterPlace(1, 2)), store) as rig:
        load = MeterLoad(rig.meter, store)
        task = asyncio.create_task(load.run(20))
        for _ in range(kills):
            await wait_for_requests(load)
            await owner.kill()
            owner = await start_process(url, 0, 2, OWNER)
        await wait_for_requests(load)
        load.is_over = True
        await task
        await expect_rows(rig)
    await owner.kill()


@pytest.mark.rest
async def test_while_the_meter_is_stopped_nothing_is_admitted_and_settlements_wait(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/dragoman.db"
    owner = await start_process(url, 0, 2, OWNER)
    async with await open_store(url) as store, running(make_meter(store, get_utc, MeterPlace(1, 2)), store) as rig:
        assert isinstance(await rig.admit("a", usd(10**9, 100), charge=make_charge(1)), Admitted)
        owner.stop()
        rig.meter.post(Settle("a", {USD: 7}))
        assert isinstance(await rig.admit_once("b", usd(10**9, 100)), Unavailable)
        assert await rig.meter.read([USD]) == ()
        rig.meter.post(Settle("b", {}))
        await store.append_usage([make_row(1, 7, "a")])
        owner.go_on()
        await expect_rows(rig)
        assert (await rig.level(USD)).spent == 7
    await owner.kill()


async def test_a_process_that_was_silent_for_too_long_is_charged_and_begins_anew(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/dragoman.db"
    async with await open_store(url) as store, running(make_meter(store, get_utc, MeterPlace(0, 2)), store) as rig:
        assert isinstance(rig.meter, SharedMeter)
        process = await start_process(url, 1, 2)
        await asyncio.sleep(0.3)
        process.stop()
        memory = rig.meter.memory
        assert memory is not None
        await rig.level(USD)
        for _ in range(MAX_SILENT + 1):
            await memory.watch_processes()
        levels = await rig.meter.read([USD, ALL_USD, SLOTS])
        assert not any(level.reserved or level.running for level in levels)
        process.go_on()  # it writes rows of its old leases, of which there are some already
        await asyncio.sleep(0.5)
        await process.end()
        await expect_rows(rig)


async def test_another_gateway_takes_the_meter_over_with_its_leases(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/dragoman.db"
    async with await open_store(url) as store:
        old = make_meter(store, get_utc)
        async with running(make_meter(store, get_utc), store) as rig:
            old_rig = MeterRig(old, store)
            assert isinstance(await rig.admit("first", usd(10**9, 100)), Admitted)
            assert isinstance(await old_rig.admit("a", slot(5), usd(10**9, 100)), Admitted)
            assert isinstance(await old_rig.admit("b", usd(10**9, 10)), Admitted)
            old.post(Settle("b", {USD: 4}))
            assert (await old_rig.level(USD)).spent == 4
        # The gateway that had the meter has ended.
        await wait_for(lambda: not old.keeps_charges)
        level = await old_rig.level(USD)
        assert (level.spent, level.reserved, level.running) == (4, 100, 1)
        assert (await old_rig.level(SLOTS)).running == 1
        await old_rig.ask(Settle("a", {USD: 5}))
        assert (await old_rig.level(USD)).spent == 9
        await old.stop()


async def test_requests_are_answered_while_a_gateway_takes_the_meter_over(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/dragoman.db"
    async with await open_store(url) as store:
        old = make_meter(store, get_utc)
        old_rig = MeterRig(old, store)
        async with running(make_meter(store, get_utc), store) as rig:
            assert isinstance(await rig.admit("first", usd(10**9, 100)), Admitted)
            assert isinstance(await old_rig.admit("a", usd(10**9, 100)), Admitted)
        assert old.keeps_charges  # it does not have the meter yet
        admitted, levels = await asyncio.gather(old_rig.admit_once("b", usd(10**9, 100)), old.read([USD]))
        assert isinstance(admitted, Admitted)
        assert [level.counter for level in levels] == [USD]
        assert not old.keeps_charges
        assert (await old_rig.level(USD)).running == 2
        await old.stop()


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.rest)])
def test_one_of_two_gateways_on_postgresql_may_be_killed(postgres_url: str, kills: int) -> None:
    asyncio.run(kill_gateways(postgres_url, kills))


async def kill_gateways(url: str, kills: int) -> None:
    async with await open_store(url) as store, running(make_postgres_meter(store, get_utc), store) as rig:
        assert isinstance(rig.meter, PostgresMeter)
        for _ in range(kills):
            process = await start_process(url, 0, 1)
            await asyncio.sleep(0.5)
            await process.kill()
            for _ in range(MAX_SILENT_IN_POSTGRES + 2):
                await rig.meter.watch_processes()
        await expect_rows(rig)
        assert len([row async for row in list_interrupted(store)]) >= kills * HELD


async def test_a_lost_request_whose_row_is_stored_is_charged_what_its_row_says(postgres_url: str) -> None:
    async with await open_store(postgres_url) as store, running(make_postgres_meter(store, get_utc), store) as rig:
        assert isinstance(rig.meter, PostgresMeter)
        async with running(make_postgres_meter(store, get_utc), store) as lost:
            assert isinstance(await lost.admit("a", usd(10**9, 100), charge=make_charge(1)), Admitted)
            await store.append_usage([make_row(2, 5, "a")])  # its settlement never arrives
            for _ in range(MAX_SILENT_IN_POSTGRES + 2):
                await rig.meter.watch_processes()
            assert (await rig.level(USD)).spent == 5


async def test_a_lost_request_of_a_worker_whose_row_is_stored_is_charged_what_its_row_says(tmp_path: Path) -> None:
    async with run_memory_meter(f"sqlite:///{tmp_path}/dragoman.db") as rig:
        assert isinstance(rig.meter, MemoryMeter)
        admit = Admit("a", "a worker", (usd(10**9, 100),), charge=make_charge(1))
        assert isinstance(await rig.ask(admit), Admitted)
        await rig.store.append_usage([make_row(2, 5, "a")])  # its settlement never arrives
        await rig.meter.end_process("a worker")
        assert (await rig.level(USD)).spent == 5


async def test_a_gateway_that_postgresql_has_ended_begins_anew(postgres_url: str) -> None:
    async with await open_store(postgres_url) as store, running(make_postgres_meter(store, get_utc), store) as rig:
        other = make_postgres_meter(store, get_utc)
        assert isinstance(rig.meter, PostgresMeter)
        async with running(other, store) as other_rig:
            before = other.process
            assert isinstance(await other_rig.admit("a", usd(10**9, 100), charge=make_charge(1)), Admitted)
            for _ in range(MAX_SILENT_IN_POSTGRES + 2):
                await rig.meter.watch_processes()
            assert (await rig.level(USD)).spent == 100
            assert await other_rig.ask(Settle("a", {USD: 5})) == GONE
            await store.append_usage([make_row(2, 5, "a")])  # not stored: the lease has a row
            assert isinstance(other, PostgresMeter)
            await other.watch_processes()
            await wait_for(lambda: other.process != before)
            assert isinstance(await other_rig.admit("b", usd(10**9, 100)), Admitted)
            await other_rig.ask(Settle("b", {}))
            await expect_rows(rig)


@pytest.mark.rest
def test_gateways_that_are_killed_and_stopped_lose_their_slots_in_time(postgres_url: str, valkey: ValkeyServer) -> None:
    asyncio.run(kill_and_stop(postgres_url, valkey.url))  # for longer than a test that is a coroutine may take


async def kill_and_stop(url: str, shared: str) -> None:
    async with run_paired_meter(shared, url) as rig:
        killed, stopped = [await start_process(url, 0, 1, "load", shared) for _ in range(2)]
        await asyncio.sleep(1)
        began = time.monotonic()
        await killed.kill()
        stopped.stop()
        while (await rig.level(SLOTS)).running:
            assert time.monotonic() - began < LONGEST_LEASE_S
            await asyncio.sleep(0.1)
        assert time.monotonic() - began > MAX_SILENT * BEAT_S - BEAT_S
        await asyncio.sleep(max(0.0, began + STOPPED_S - time.monotonic()))
        stopped.go_on()
        await wait_for_slots(rig, HELD)  # it takes them again, for what it does run
        await stopped.end()
        assert isinstance(rig.meter, PairedMeter)
        windows = rig.meter.windows
        assert isinstance(windows, PostgresMeter)
        for _ in range(MAX_SILENT_IN_POSTGRES + 2):
            await windows.watch_processes()
        await expect_rows(rig)


async def wait_for_slots(rig: MeterRig, count: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while (await rig.level(SLOTS)).running < count:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)

"""Rates and slots of several gateways on one Valkey: exact together, and within a share while it is away."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from dragoman.store.meter import GONE, Admitted, Hold, HoldKind, Refused, Settle
from dragoman.store.valkey import DEADLINE_S, PREFIX, SharedStateError, Valkey, parse_address
from dragoman.store.valkey_meter import BASE, MAX_SILENT, UNNAMED_S, ValkeyMeter
from tenancy.meters import (
    PATIENT_S,
    REQUESTS,
    SLOTS,
    USD,
    MeterRig,
    rate,
    run_paired_meter,
    slot,
    usd,
    wait_until_admitted,
)
from valkey_server import ValkeyServer
from waiting import PATIENCE_S, wait_until_async

if TYPE_CHECKING:
    from postgres import Postgres

OUTAGE_S = 1.0  # no request waits that long; 0.1 s on a machine that does nothing else


@asynccontextmanager
async def run_replicas(
    valkey: ValkeyServer, directory: Path, count: int, deadline_s: float = PATIENT_S
) -> AsyncIterator[list[MeterRig]]:
    """Run several gateways' meters, each with windows of its own."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                run_paired_meter(valkey.url, f"sqlite:///{directory}/{number}.db", deadline_s=deadline_s)
            )
            for number in range(count)
        ]


@asynccontextmanager
async def run_valkey_meter(valkey: ValkeyServer) -> AsyncIterator[ValkeyMeter]:
    """Run a meter whose heartbeats are those of the test."""
    shared = Valkey(parse_address(valkey.url), PATIENT_S)
    yield ValkeyMeter(shared)
    await shared.stop()


async def wait_for_running(rig: MeterRig, count: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while (await rig.level(SLOTS)).running != count:
        assert time.monotonic() < end, await rig.level(SLOTS)
        await asyncio.sleep(0.02)


_numbers = itertools.count()


async def admit_often(rigs: list[MeterRig], each: int, make_holds: Callable[[], object]) -> int:
    """Admit leases through all meters at once; return how many were."""

    async def admit(rig: MeterRig, lease: str) -> bool:
        return isinstance(await rig.admit_once(lease, make_holds()), Admitted)  # type: ignore[arg-type]

    call = next(_numbers)
    leases = [(rig, f"{call}-{place}-{number}") for number in range(each) for place, rig in enumerate(rigs)]
    return sum(await asyncio.gather(*(admit(rig, lease) for rig, lease in leases)))


async def test_slots_of_three_gateways_are_exact(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with run_replicas(valkey, tmp_path, 3) as rigs:
        assert await admit_often(rigs, 40, lambda: slot(50)) == 50
        assert (await rigs[0].level(SLOTS)).running == 50


async def test_a_rate_of_three_gateways_is_exact(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with run_replicas(valkey, tmp_path, 3) as rigs:
        began = time.monotonic()
        admitted = await admit_often(rigs, 40, lambda: rate(60))
        assert 60 <= admitted <= 61 + (time.monotonic() - began)


async def test_a_rate_goes_on_though_the_clock_of_the_server_was_set_back(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with run_replicas(valkey, tmp_path, 1) as [rig]:
        assert isinstance(await rig.admit("a", rate(600, 600)), Admitted)
        in_an_hour = f"0 {int(time.time() * 1000) + 3_600_000} 600"
        assert valkey.execute("SET", f"{PREFIX}{BASE}rate:{REQUESTS}", in_an_hour) == b"+OK"
        await wait_until_admitted(rig)


async def test_large_limits_are_whole_numbers(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with run_replicas(valkey, tmp_path, 1) as [rig]:
        for number in range(3):
            result = await rig.admit(f"r{number}", rate(10**8, 10**7))
            assert isinstance(result, Admitted)
            assert 0 <= result.remaining[0] - (10**8 - 10**7 * (number + 1)) < 10**7
        largest = Hold("all:tokens_per_min", HoldKind.RATE, 10**15, 10**14)
        assert await rig.admit("large", largest) == Admitted((9 * 10**14,))
        assert isinstance(await rig.admit("larger", replace(largest, amount=10**16)), Refused)


async def test_what_the_windows_refuse_is_given_back(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with run_replicas(valkey, tmp_path, 1) as [rig]:
        assert isinstance(await rig.admit("a", usd(10, 10)), Admitted)
        assert await rig.admit("b", rate(60), slot(5), usd(10, 10)) == Refused(2, 0, 10, waits=True)
        assert (await rig.level(SLOTS)).running == 0
        assert (await rig.level(REQUESTS)).spent == 0
        await rig.ask(Settle("a", {USD: 1}))
        assert isinstance(await rig.admit("b", rate(60), slot(5), usd(10, 5)), Admitted)  # by the same lease
        assert (await rig.level(SLOTS)).running == 1


async def test_an_admission_after_its_undo_takes_nothing(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with run_replicas(valkey, tmp_path, 1) as [rig]:
        rig.meter.post(Settle("late", {}))
        assert await rig.admit("late", slot(5)) == GONE
        assert (await rig.level(SLOTS)).running == 0


@pytest.mark.rest
async def test_without_its_server_each_gateway_has_its_share(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with run_replicas(valkey, tmp_path, 3, DEADLINE_S) as rigs:
        await wait_for_processes(rigs, 3)
        await asyncio.gather(*(rig.admit(f"held-{place}", slot(6)) for place, rig in enumerate(rigs)))
        valkey.kill()
        assert await admit_often(rigs, 5, lambda: slot(6)) == 3  # 2 each, of which 1 is held
        assert await admit_often(rigs, 5, lambda: slot(1, "key:key_2:concurrent")) == 3  # fewer than gateways: 1 each
        assert 3 <= await admit_often(rigs, 5, lambda: rate(3)) <= 6
        valkey.start()
        await wait_for_running(rigs[0], 6)  # they are named again
        for place, rig in enumerate(rigs):
            await rig.ask(Settle(f"held-{place}", {}))
        await wait_for_running(rigs[0], 3)


@pytest.mark.rest
async def test_what_was_taken_while_the_server_was_slow_is_not_admitted_twice(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    began = time.monotonic()
    async with run_replicas(valkey, tmp_path, 3, DEADLINE_S) as rigs:
        await wait_for_processes(rigs, 3)
        taken = slots = 0
        for _ in range(4):  # as on a machine that has too much to do
            valkey.freeze()
            taken += await admit_often(rigs, 12, lambda: rate(60))
            slots += await admit_often(rigs, 5, lambda: slot(12))
            valkey.thaw()
            for _ in range(15):
                taken += await admit_often(rigs, 3, lambda: rate(60))
                slots += await admit_often(rigs, 1, lambda: slot(12))
                await asyncio.sleep(0.1)
        assert slots == 12
        assert 57 <= taken <= 63 + (time.monotonic() - began)


async def test_without_its_server_a_gateway_gives_no_more_of_a_rate_than_was_left(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with run_replicas(valkey, tmp_path, 3, DEADLINE_S) as rigs:
        await wait_for_processes(rigs, 3)
        began = time.monotonic()
        assert await admit_often(rigs, 30, lambda: rate(60)) >= 60
        for rig in rigs:  # which learns that nothing is left
            await rig.admit_once("one-more", rate(60))
        valkey.kill()
        more = [await rig.admit_once(f"more-{number}", rate(60)) for number in range(20) for rig in rigs]
        assert sum(isinstance(result, Admitted) for result in more) <= len(rigs) + time.monotonic() - began
        valkey.start()


async def wait_for_processes(rigs: list[MeterRig], count: int) -> None:
    """Wait until each meter knows how many there are."""
    meters = [rig.meter for rig in rigs]
    end = time.monotonic() + PATIENCE_S
    for meter in meters:
        while meter.shared.processes != count:  # type: ignore[attr-defined]
            assert time.monotonic() < end
            await asyncio.sleep(0.02)


async def test_a_frozen_server_holds_up_no_request_and_keeps_no_slot(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with run_replicas(valkey, tmp_path, 1, DEADLINE_S) as [rig]:
        await rig.admit("first", slot(100))
        valkey.freeze()
        for number in range(6):
            began = time.monotonic()
            assert isinstance(await rig.admit_once(f"r{number}", slot(100)), Admitted)
            assert time.monotonic() - began < OUTAGE_S
        for number in range(6):
            rig.meter.post(Settle(f"r{number}", {}))  # which may be executed before its admission
        valkey.thaw()
        await wait_for_running(rig, 1)
        await asyncio.sleep(0.2)
        assert (await rig.level(SLOTS)).running == 1


async def test_who_has_waited_for_two_answers_waits_for_no_third(valkey: ValkeyServer) -> None:
    async with run_valkey_meter(valkey) as meter:
        assert isinstance(await meter.admit("a", [slot(5)]), Admitted)
        meter.shared.misses = 2
        for ask in (meter.admit, meter.take):
            with pytest.raises(SharedStateError, match="not answered twice"):
                await ask("a", [slot(5)])


@pytest.mark.rest
async def test_a_share_is_of_all_that_postgresql_knows_though_valkey_has_never_answered(
    valkey: ValkeyServer, postgres: "Postgres"
) -> None:
    url = await asyncio.to_thread(postgres.empty_database)
    valkey.kill()
    try:
        async with run_paired_meter(valkey.url, url) as one, run_paired_meter(valkey.url, url) as two:
            rigs = [one, two]
            await wait_until_async(lambda: all(rig.meter.processes == 2 for rig in rigs))  # type: ignore[attr-defined]
            assert await admit_often(rigs, 6, lambda: slot(6)) == 6
    finally:
        valkey.start()


@pytest.mark.parametrize("fault", ["flush", pytest.param("restart", marks=pytest.mark.rest)])
async def test_what_runs_is_named_to_a_server_that_has_lost_it(
    valkey: ValkeyServer, tmp_path: Path, fault: str
) -> None:
    async with run_replicas(valkey, tmp_path, 2) as rigs:
        await asyncio.gather(*(rig.admit(f"a{place}", slot(3)) for place, rig in enumerate(rigs)))
        if fault == "flush":
            valkey.flush()
        else:
            valkey.kill()
            valkey.start()
        assert isinstance(await rigs[0].admit("b", slot(3)), Admitted)
        assert (await rigs[0].level(SLOTS)).running >= 2  # its own was named before anything was taken
        await wait_for_running(rigs[0], 3)
        assert isinstance(await rigs[1].admit("c", slot(3)), Refused)
        await rigs[0].ask(Settle("a0", {}))
        assert isinstance(await rigs[1].admit("d", slot(3)), Admitted)


async def test_a_silent_process_loses_its_slots_and_takes_them_again(valkey: ValkeyServer) -> None:
    async with run_valkey_meter(valkey) as alive, run_valkey_meter(valkey) as silent:
        before = silent.process
        assert isinstance(await silent.admit("a", [slot(5)]), Admitted)
        for _ in range(MAX_SILENT + 1):
            assert (await alive.read([SLOTS]))[0].running == 1
            await alive.watch_processes()
        assert (await alive.read([SLOTS]))[0].running == 0
        assert await silent.admit("b", [slot(5)]) == GONE
        await silent.watch_processes()
        assert silent.process != before
        await silent.watch_processes()
        assert (await alive.read([SLOTS]))[0].running == 1  # it runs, after all
        silent.settle("a", {})
        assert (await silent.read([SLOTS]))[0].running == 0


@pytest.mark.rest
async def test_no_process_is_collected_for_the_time_in_which_the_server_was_frozen(valkey: ValkeyServer) -> None:
    shared = Valkey(parse_address(valkey.url), DEADLINE_S)
    async with run_valkey_meter(valkey) as other:
        watching = ValkeyMeter(shared)
        await other.admit("a", [slot(5)])
        await watching.watch_processes()
        valkey.freeze()
        for _ in range(2 * MAX_SILENT):
            with pytest.raises(SharedStateError):
                await watching.watch_processes()
        valkey.thaw()
        while True:
            try:
                await watching.watch_processes()
                break
            except SharedStateError:
                await asyncio.sleep(0.05)
        assert (await other.read([SLOTS]))[0].running == 1
    await shared.stop()


@pytest.mark.rest
async def test_what_a_process_does_not_know_of_is_ended(valkey: ValkeyServer) -> None:
    async with run_valkey_meter(valkey) as meter, run_valkey_meter(valkey) as stray:
        await meter.admit("own", [slot(5)])
        stray.process = meter.process
        await stray.admit("stray", [slot(5)])  # an admission that was executed although its answer got lost
        await meter.name_leases()
        await asyncio.sleep(UNNAMED_S / 2)
        await meter.name_leases()
        assert (await meter.read([SLOTS]))[0].running == 2  # its answer may be on the way
        await asyncio.sleep(UNNAMED_S / 2 + 0.1)
        await meter.name_leases()
        assert (await meter.read([SLOTS]))[0].running == 1

"""Rates and slots while the database that counts them does not answer: each process goes on within its share."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from bench.ports import find_free_port

from dragoman.store import make_store
from dragoman.store.meter import Admitted, Change, Refused, Settle, Unavailable
from dragoman.tenancy.opened_meter import count_by_share, make_postgres_meter
from tenancy.meters import SLOTS, USD, MeterRig, get_utc, rate, run_counted_meter, slot, usd
from waiting import wait_until_async

if TYPE_CHECKING:
    from postgres import Postgres

OTHER_SLOTS = "provider:up:concurrent"


@asynccontextmanager
async def run_without_database() -> AsyncIterator[MeterRig]:
    async with make_store(f"postgresql://nobody@127.0.0.1:{find_free_port()}/none") as store:
        meter = count_by_share(make_postgres_meter(store, get_utc))
        try:
            yield MeterRig(meter, store)
        finally:
            await meter.stop()


async def test_slots_are_counted_without_the_database() -> None:
    async with run_without_database() as rig:
        assert await rig.admit_once("a", slot(2)) == Admitted((1,))
        assert await rig.admit_once("b", slot(2)) == Admitted((0,))
        assert await rig.admit_once("c", slot(2)) == Refused(0, 2, wait_ms=1000)
        rig.meter.post(Settle("a", {}))
        assert isinstance(await rig.admit_once("d", slot(2)), Admitted)
        assert (await rig.meter.read([SLOTS]))[0].running == 2


async def test_rates_are_counted_without_the_database_and_what_was_not_used_is_given_back() -> None:
    async with run_without_database() as rig:
        assert await rig.admit_once("a", rate(60, 40)) == Admitted((20,))
        assert isinstance(await rig.admit_once("b", rate(60, 40)), Refused)
        rig.meter.post(Settle("a", {rate(60).counter: 10}))
        assert isinstance(await rig.admit_once("b", rate(60, 40)), Admitted)


async def test_windows_are_not_and_their_request_has_a_slot_until_it_ends() -> None:
    async with run_without_database() as rig:
        assert isinstance(await rig.admit_once("a", slot(1), usd(1000, 10)), Unavailable)
        assert await rig.admit_once("b", slot(1), usd(1000, 10)) == Refused(0, 1, wait_ms=1000)
        rig.meter.post(Settle("a", {USD: 0}))
        assert isinstance(await rig.admit_once("b", slot(1)), Admitted)


async def test_a_request_that_changes_its_target_changes_its_slots() -> None:
    async with run_without_database() as rig:
        assert isinstance(await rig.admit_once("a", slot(1)), Admitted)
        assert isinstance(await rig.ask(Change("a", (SLOTS,), (slot(1, OTHER_SLOTS),))), Admitted)
        levels = await rig.meter.read([SLOTS, OTHER_SLOTS])
        assert [level.running for level in levels] == [0, 1]
        assert await rig.admit_once("b", slot(1), slot(1, OTHER_SLOTS)) == Refused(1, 1, wait_ms=1000)


@pytest.mark.rest
async def test_two_processes_have_half_each_of_what_is_left(postgres: "Postgres") -> None:
    url = await asyncio.to_thread(postgres.empty_database)
    async with run_counted_meter(url) as one, run_counted_meter(url) as two:
        rigs = [one, two]
        await wait_until_async(lambda: one.meter.processes == two.meter.processes == 2)  # type: ignore[attr-defined]
        for number in range(20):
            assert isinstance(await rigs[number % 2].admit(f"before-{number}", rate(60), slot(30)), Admitted)
        began = time.monotonic()
        await asyncio.to_thread(postgres.stop)
        try:
            found = [await rig.admit_once(f"{number}", rate(60)) for number in range(30) for rig in rigs]
            admitted = sum(isinstance(result, Admitted) for result in found)
            assert 36 <= admitted <= 42 + time.monotonic() - began
            for rig in rigs:
                found = [await rig.admit_once(f"slot-{number}", slot(30)) for number in range(10)]
                assert [isinstance(result, Admitted) for result in found] == [True] * 5 + [False] * 5
        finally:
            await asyncio.to_thread(postgres.start)
        number = 0
        while not isinstance(await one.admit_once(f"after-{number}", slot(30)), Admitted):
            number += 1
            await asyncio.sleep(0.1)

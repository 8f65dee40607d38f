"""The meter in memory by itself: comparison with the rows, windows that pass, time zones, and a store that fails."""

import asyncio
import logging
import random
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from dragoman.store import Store, open_store
from dragoman.store.database import Session
from dragoman.store.meter import Admit, Admitted, Hold, HoldKind, RowsWritten, Settle, Unavailable
from dragoman.tenancy.memory_meter import MemoryMeter, MeterClocks
from dragoman.tenancy.windows import WindowKind, find_window, name_counter
from store.rows import EVER, row_at
from tenancy.meters import ALL_USD, USD, MeterRig, get_utc, make_row, rate, slot, usd


async def test_a_counter_that_differs_from_its_rows_is_set_right_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with await open_store(f"sqlite:///{tmp_path}/dragoman.db") as store:
        rig = MeterRig(meter := MemoryMeter(store, get_utc), store)
        await rig.admit("a", usd(1000, 10))
        await rig.ask(Settle("a", {USD: 100}))
        await store.append_usage([make_row(1, 100, "a"), make_row(2, 40)])  # the second never had a lease
        await rig.ask(RowsWritten(("a",)))
        assert (await rig.level(USD)).spent == 100
        with caplog.at_level(logging.WARNING):
            await meter.compare_with_rows()
        assert (await rig.level(USD)).spent == 140
        assert meter.drift == pytest.approx(40 / 140)
        assert f'"{USD}" was 100; its usage rows add up to 140' in caplog.text
        await meter.compare_with_rows()
        assert meter.drift == 0
        await meter.stop()


async def test_counters_of_past_windows_full_buckets_and_free_slots_are_forgotten(tmp_path: Path) -> None:
    clock = [datetime(2026, 11, 30, 23, 59, tzinfo=UTC).timestamp()]
    clocks = MeterClocks(lambda: int(clock[0] * 1000), lambda: int(clock[0] * 1000))
    async with await open_store(f"sqlite:///{tmp_path}/dragoman.db") as store:
        rig = MeterRig(meter := MemoryMeter(store, get_utc, clocks), store)
        november = [usd(1000, 10, f"key:k{number}:usd:2026-11") for number in range(20)]
        await rig.admit("a", rate(10), slot(5), *november)
        await rig.ask(Settle("a", {hold.counter: 1 for hold in november}))
        await rig.admit("b", usd(1000, 10, "key:k0:usd:2026-11"))
        clock[0] += 2 * 3600
        meter.tidy()
        assert [*meter.counters.windows] == ["key:k0:usd:2026-11"]  # a request that began in it still runs
        await rig.ask(Settle("b", {"key:k0:usd:2026-11": 5}))
        meter.tidy()
        assert not meter.counters.windows
        assert meter.counters.read("key:key_1:requests_per_min") is None
        await meter.stop()


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns"])
async def test_a_months_end_begins_anew_in_its_time_zone(tmp_path: Path, zone: str) -> None:
    info = ZoneInfo(zone)
    end_s = datetime(2026, 11, 1, tzinfo=info).timestamp()
    async with await open_store(f"sqlite:///{tmp_path}/dragoman.db") as store:
        rows = [row_at(int((end_s + minutes * 60) * 1000), 1000 + minutes) for minutes in range(-60, 60, 15)]
        await store.append_usage([replace(row, cost_nano_usd=10) for row in rows])
        rig = MeterRig(meter := MemoryMeter(store, lambda: info), store)
        for moment, spent in ((end_s - 1, 40), (end_s, 40)):
            counter = name_counter("all", "usd", find_window(WindowKind.MONTH, moment, info))
            assert (await rig.level(counter)).spent == spent
        before = name_counter("all", "usd", find_window(WindowKind.MONTH, end_s - 1, info))
        assert before.endswith("2026-10")
        await meter.stop()


async def test_a_changed_time_zone_counts_again_from_the_rows(tmp_path: Path) -> None:
    zones: list[tzinfo] = [UTC]
    midnight = datetime(2026, 11, 18, tzinfo=UTC).timestamp()
    async with await open_store(f"sqlite:///{tmp_path}/dragoman.db") as store:
        await store.append_usage([replace(row_at(int((midnight - 1800) * 1000), 1), cost_nano_usd=10)])
        rig = MeterRig(meter := MemoryMeter(store, lambda: zones[0]), store)
        await meter.adopt_changes()
        assert (await rig.level("all:usd:2026-11-18")).spent == 0
        zones[0] = ZoneInfo("Europe/Berlin")  # where it was half past midnight
        await meter.adopt_changes()
        assert (await rig.level("all:usd:2026-11-18")).spent == 10
        await meter.stop()


async def test_without_sums_of_the_past_nothing_is_admitted_under_a_budget(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/dragoman.db")
    await break_sums(store)
    rig = MeterRig(meter := MemoryMeter(store, get_utc), store)
    assert isinstance(await rig.admit_once("a", slot(5), usd(1000, 10)), Unavailable)
    assert isinstance(await rig.admit("b", slot(5)), Admitted)
    assert not meter.counters.windows[USD].running
    await meter.stop()
    await store.close()


async def break_sums(store: Store) -> None:
    async def drop(session: Session) -> None:
        await session.execute("DROP TABLE adjustments")

    await store.database.write(drop)


async def test_many_requests_and_their_rows_agree_while_they_are_compared(tmp_path: Path) -> None:
    drawn = random.Random(3)
    async with await open_store(f"sqlite:///{tmp_path}/dragoman.db") as store:
        rig = MeterRig(meter := MemoryMeter(store, get_utc), store)
        numbers = iter(range(400))

        async def work() -> None:
            for number in numbers:
                lease, cost = f"lease-{number}", drawn.randrange(100)
                holds = (usd(10**9, 100), Hold(ALL_USD, HoldKind.WINDOW, 10**9, 100))
                [result] = await meter.apply([Admit(lease, meter.process, holds)])
                assert isinstance(result, Admitted)
                await asyncio.sleep(0)
                meter.post(Settle(lease, {USD: cost, ALL_USD: cost}))
                await store.append_usage([make_row(number, cost, lease)])
                meter.post(RowsWritten((lease,)))

        async def compare() -> None:
            for _ in range(30):
                await meter.compare_with_rows()
                assert meter.drift == 0

        await asyncio.gather(compare(), *(work() for _ in range(10)))
        await meter.compare_with_rows()
        assert meter.drift == 0
        assert (await rig.level(USD)).spent == sum(row.cost_nano_usd or 0 for row in await store.read_usage_rows(EVER))
        await meter.stop()

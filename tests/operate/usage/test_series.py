"""Usage by hour and day of a time zone, and the speed of routes."""

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from dragoman.operate import InvalidArgument
from dragoman.operate.usage.series import (
    TimeSteps,
    find_percentile,
    find_zone,
    read_series,
    read_speed,
    split_at_offsets,
)
from dragoman.store import open_store
from dragoman.store.usage_rows import SLOT_MS, UsageRow, UsageSpan
from store.rows import row, row_at

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
EVER = UsageSpan(0, 10**17)


def at(moment: datetime, number: int) -> UsageRow:
    return row_at(int(moment.timestamp() * 1000), number)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York", "Australia/Lord_Howe"])
def test_days_are_those_of_the_zone_even_where_the_clock_is_changed(zone: str, store_url: str) -> None:
    where = ZoneInfo(zone)
    moments = [datetime(2026, 10, 23, tzinfo=UTC) + timedelta(minutes=37 * number) for number in range(320)]
    rows = [at(moment, number) for number, moment in enumerate(moments)]

    async def scenario() -> None:
        store = await open_store(store_url)
        await store.append_usage(rows)
        sums = await read_series(store, EVER, "all", TimeSteps("day", where, NOW))
        await store.close()
        days: dict[datetime, int] = {}
        for moment in moments:
            local = moment.astimezone(where)
            midnight = datetime(local.year, local.month, local.day, tzinfo=where)
            days[midnight] = days.get(midnight, 0) + 1
        expected = [(int(day.timestamp() * 1000) // SLOT_MS, count) for day, count in days.items()]
        assert [(part.slot, part.requests) for part in sums] == expected

    asyncio.run(scenario())


@pytest.mark.parametrize("month_and_day", [(3, 29), (10, 25)], ids=["ahead", "back"])
def test_a_day_begins_at_midnight_though_all_its_requests_follow_the_change_of_the_clock(
    month_and_day: tuple[int, int], store_url: str
) -> None:
    midnight = datetime(2026, *month_and_day, tzinfo=BERLIN)
    morning, noon = midnight.replace(hour=9), midnight.replace(hour=12)

    async def scenario() -> None:
        store = await open_store(store_url)
        await store.append_usage([at(noon, 0)])
        for since in (midnight - timedelta(days=9), morning):
            span = UsageSpan(int(since.timestamp() * 1000), 10**17)
            [day] = await read_series(store, span, "all", TimeSteps("day", BERLIN, NOW))
            assert day.slot * SLOT_MS == midnight.timestamp() * 1000, since
        await store.close()

    asyncio.run(scenario())


def test_a_time_is_split_where_the_clock_is_changed() -> None:
    since, until = (int(datetime(2026, month, 1, tzinfo=UTC).timestamp() * 1000) for month in (10, 12))
    first, second = split_at_offsets(since, until, BERLIN, NOW + timedelta(days=30))
    assert (first.since_ms, first.offset_ms, second.until_ms, second.offset_ms) == (since, 7_200_000, until, 3_600_000)
    assert first.until_ms == second.since_ms == int(datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp() * 1000)
    [whole] = split_at_offsets(0, 10**17, ZoneInfo("UTC"), NOW)
    assert (whole.since_ms, whole.until_ms) == (0, 10**17)


def test_an_unknown_zone_is_named() -> None:
    for name in ("Mars/Olympus", "../etc/passwd", "", "x" * 500):
        with pytest.raises(InvalidArgument, match="time zone"):
            find_zone(name)


def test_the_speed_of_a_route_is_its_percentiles_and_tokens_per_second(store_url: str) -> None:
    rows = [
        replace(row(number), ttft_ms=100 if number < 90 else 5000, duration_ms=6000, output_tokens=59)
        for number in range(100)
    ]

    async def scenario() -> None:
        store = await open_store(store_url)
        await store.append_usage([*rows, replace(row(200), provider="slow", ttft_ms=None)])
        [speed] = await read_speed(store, EVER)
        await store.close()
        assert (speed.route, speed.requests) == ("up/claude-fake", 100)
        assert 95 <= speed.ttft_p50_ms <= 105
        assert 4750 <= speed.ttft_p95_ms <= 5250
        assert speed.tokens_per_s == round(59 * 100 / (90 * 5.9 + 10 * 1.0), 1)

    asyncio.run(scenario())


def test_a_percentile_is_the_first_time_that_enough_requests_had() -> None:
    assert find_percentile({0: 1}, 0.95) == 1
    assert [find_percentile({8: 50, 16: 50}, share) for share in (0.5, 0.51, 1.0)] == [2, 4, 4]

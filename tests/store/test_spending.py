"""What was spent, by scope and time: of rows, of rows that were removed, and with adjustments."""

import random
import time

import pytest
from msgspec.structs import replace

from dragoman.store import Store, open_store
from dragoman.store.meter import NANO, find_amount
from dragoman.store.spending import FOREVER_MS, UNITS, SpendingAdjustment, SpendingQuery
from dragoman.store.usage_rows import SLOT_MS, UsageRow
from store.rows import row_at

DAY_MS = 86_400_000
NOW_MS = int(time.time() * 1000) // SLOT_MS * SLOT_MS
DAYS = 60

SCOPES = [("all", ()), ("key", ("key_1",)), ("user", ("ann",)), ("team", ("core",)), ("provider", ("kiro", "kiro-2"))]


def make_rows(count: int) -> list[UsageRow]:
    drawn = random.Random(7)
    rows = []
    for number in range(count):
        row = row_at(NOW_MS - drawn.randrange(DAYS * DAY_MS), number)
        rows.append(
            replace(
                row,
                key=drawn.choice(["key_1", "key_2"]),
                user=drawn.choice(["", "ann", "bob"]),
                team=drawn.choice(["", "core"]),
                provider=drawn.choice(["", "kiro", "kiro-2", "kiro-20"]),
                cost_nano_usd=drawn.choice([None, drawn.randrange(10**9)]),
                input_tokens=drawn.choice([None, drawn.randrange(10, 10**6)]),
                cache_read_tokens=drawn.choice([None, 10]),
                credits=drawn.choice([None, drawn.randrange(100) / 4]),
                lease=f"lease-{number}" if number % 3 else "",
            )
        )
    return rows


def has_scope(row: UsageRow, kind: str, names: tuple[str, ...]) -> bool:
    found = {"key": row.key, "user": row.user, "team": row.team, "provider": row.provider}
    return kind == "all" or found[kind] in names


def make_query(kind: str, names: tuple[str, ...], unit: str, days: int, leases: tuple[str, ...] = ()) -> SpendingQuery:
    scope = ":".join(filter(None, (kind, ",".join(names))))
    start = NOW_MS - days * DAY_MS if days else 0
    return SpendingQuery(kind, names, scope, unit, start, FOREVER_MS, NOW_MS, leases)


async def expect_sums(store: Store, rows: list[UsageRow]) -> None:
    leases = tuple(row.lease for row in rows[:50] if row.lease)
    for kind, names in SCOPES:
        for unit in UNITS:
            for days in (0, 3, 31):
                query = make_query(kind, names, unit, days, leases)
                expected = sum(
                    find_amount(row, unit)
                    for row in rows
                    if has_scope(row, kind, names) and row.time_ms >= query.start_ms and row.lease not in leases
                )
                assert await store.read_spending(query) == pytest.approx(expected, abs=0 if unit != "credits" else 9)


async def test_sums_are_those_of_the_rows_also_of_removed_ones(store_url: str) -> None:
    rows = make_rows(400)
    async with await open_store(store_url) as store:
        await store.append_usage(rows)
        await expect_sums(store, rows)
        # Rows without the leases that are left out: those of leases are not removed while a meter asks for them.
        removed = [row for row in rows if row.time_ms < NOW_MS - 10 * DAY_MS]
        while await store.remove_usage(NOW_MS - 10 * DAY_MS, 100):
            pass
        kept = sorted(rows, key=lambda row: row.time_ms < NOW_MS - 10 * DAY_MS)
        assert removed
        await expect_sums(store, kept)


async def test_an_adjustment_counts_in_the_windows_of_its_time_until_it_ends(store_url: str) -> None:
    async with await open_store(store_url) as store:
        await store.add_adjustment(SpendingAdjustment(NOW_MS - DAY_MS, "key:key_1", "usd", -5 * NANO))
        await store.add_adjustment(SpendingAdjustment(NOW_MS - DAY_MS, "key:key_1", "usd", -7 * NANO, NOW_MS + 1))
        await store.add_adjustment(SpendingAdjustment(NOW_MS - DAY_MS, "key:key_1", "usd", -9 * NANO, NOW_MS))
        await store.add_adjustment(SpendingAdjustment(NOW_MS - 5 * DAY_MS, "key:key_1", "usd", -11 * NANO))
        await store.add_adjustment(SpendingAdjustment(NOW_MS - DAY_MS, "key:key_1", "tokens", -3))
        assert await store.read_spending(make_query("key", ("key_1",), "usd", 3)) == -12 * NANO
        assert await store.read_spending(make_query("key", ("key_1",), "usd", 0)) == -23 * NANO
        assert await store.read_spending(make_query("key", ("key_1",), "tokens", 3)) == -3
        assert await store.read_spending(make_query("key", ("key_2",), "usd", 3)) == 0
        found = await store.read_adjustments(3, NOW_MS - 1, NOW_MS)
        assert [adjustment.number for adjustment in found] == [3, 4, 5]


async def test_a_second_row_of_a_lease_is_not_stored(store_url: str) -> None:
    first, other = [replace(row_at(NOW_MS, number), lease="lease-1", cost_nano_usd=number) for number in (1, 2)]
    async with await open_store(store_url) as store:
        await store.append_usage([first])
        await store.append_usage([other, row_at(NOW_MS, 3)])
        await store.append_usage([replace(row_at(NOW_MS, number), lease="lease-4") for number in (4, 5)])
        assert await store.read_spending(make_query("all", (), "usd", 1)) == 1 + 1_234_567 + 1_234_567

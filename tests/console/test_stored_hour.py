"""The figures of the last hour: what a worker counted itself, completed from the store."""

import time

from msgspec.structs import replace

from dragoman.server.console.stored_hour import HourReader, StoredHour
from dragoman.store import open_store
from store.rows import row_at
from tables import each_row

COUNTED = {"under_way": 2, "errors": 1, "requests_last_hour": 4, "cost_last_hour_usd": 0.5, "is_partial": True}


@each_row(
    ("stored", "requests", "cost", "errors", "is_partial"),
    [
        (StoredHour(), 4, 0.5, 1, True),
        (StoredHour(3, 10**9, 0, 3), 4, 0.5, 3, True),
        (StoredHour(4, 2 * 10**9, 1, 0), 4, 2.0, 1, False),
        (StoredHour(900, 3 * 10**9, 1, 7), 900, 3.0, 7, False),
    ],
)
def test_the_larger_count_is_shown(
    stored: StoredHour, requests: int, cost: float, errors: int, is_partial: bool
) -> None:
    totals = stored.complete(COUNTED)
    assert totals["under_way"] == 2
    assert (totals["requests_last_hour"], totals["cost_last_hour_usd"]) == (requests, cost)
    assert (totals["errors"], totals["is_partial"]) == (errors, is_partial)


async def test_the_sums_are_those_of_one_key_or_of_all(store_url: str) -> None:
    store, now_ms = await open_store(store_url), int(time.time() * 1000)
    minutes = {0: "ok", 2: "upstream", 20: "upstream", 59: "client_gone", 61: "ok"}
    rows = [
        replace(row_at(now_ms - age * 60_000, age), outcome=outcome, key="key_1" if age < 10 else "key_2")
        for age, outcome in minutes.items()
    ]
    await store.append_usage([*rows, replace(row_at(now_ms - 1000, 99), cost_nano_usd=None)])
    assert await HourReader(store, None).read() == StoredHour(5, 4 * 1_234_567, 1, 1)
    assert await HourReader(store, "key_2").read() == StoredHour(2, 2 * 1_234_567, 0, 0)
    assert await HourReader(None, None).read() == StoredHour()
    await store.close()

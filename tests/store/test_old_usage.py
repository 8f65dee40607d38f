"""Old usage rows are removed from either store if the configuration says so."""

import asyncio
import logging
import time
from pathlib import Path

import pytest

from dragoman.operate.usage.usage_writer import DAY_MS, REMOVE_BATCH, remove_old_usage, remove_old_usage_forever
from dragoman.store import Store, open_store
from dragoman.store.usage_rows import UsageRow
from store.rows import EVER, row, row_at


def make_old_row(number: int, days: float) -> UsageRow:
    return row_at(int(time.time() * 1000 - days * DAY_MS), number)


async def list_kept(store: Store) -> list[str]:
    return [one.request_id for one in await store.read_usage_rows(EVER)]


def test_the_oldest_rows_are_removed_first_up_to_a_limit(store_url: str) -> None:
    async def story() -> None:
        store = await open_store(store_url)
        await store.append_usage([row(number) for number in (5, 3, 1, 2, 4)])
        before_ms = row(4).time_ms
        assert await store.remove_usage(before_ms, 2) == 2
        assert await list_kept(store) == ["req_3", "req_4", "req_5"]
        assert await store.remove_usage(before_ms, 2) == 1
        assert await store.remove_usage(before_ms, 2) == 0
        assert await list_kept(store) == ["req_4", "req_5"]
        await store.close()

    asyncio.run(story())


def test_more_than_one_batch_is_removed_and_logged(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        store = await open_store(store_url)
        await store.append_usage(
            [*(make_old_row(number, 31) for number in range(REMOVE_BATCH + 1)), make_old_row(REMOVE_BATCH + 1, 29)]
        )
        await remove_old_usage(store, 30)
        assert await list_kept(store) == [f"req_{REMOVE_BATCH + 1}"]
        await store.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(story())
    assert f"removed {REMOVE_BATCH + 1} rows of usage older than 30 days" in caplog.text


def test_two_gateways_may_remove_at_once(store_url: str) -> None:
    async def story() -> None:
        first, second = await open_store(store_url), await open_store(store_url)
        await first.append_usage([make_old_row(number, 9 + number % 5) for number in range(500)])
        before_ms = int(time.time() * 1000 - 8 * DAY_MS)
        removed = await asyncio.gather(*(store.remove_usage(before_ms, 100) for store in (first, second) * 10))
        await remove_old_usage(first, 8)
        assert sum(removed) <= 500
        assert await list_kept(second) == []
        await first.close()
        await second.close()

    asyncio.run(story())


def test_an_edited_setting_applies_and_without_it_nothing_is_removed(tmp_path: Path) -> None:
    async def story() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/usage.db")
        await store.append_usage([make_old_row(1, 4000)])
        days: list[float | None] = [None]
        reads = 0

        def read_setting() -> float | None:
            nonlocal reads
            reads += 1
            return days[0]

        async def wait_until_read(times: int) -> None:
            while reads < times:  # noqa: ASYNC110 - it raises no event
                await asyncio.sleep(0.005)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(remove_old_usage_forever(store, read_setting, every_s=0.01))
            await wait_until_read(3)
            assert await list_kept(store) == ["req_1"]
            days[0] = 1.0
            await wait_until_read(reads + 2)
            assert await list_kept(store) == []
            watching.cancel()
        await store.close()

    asyncio.run(story())

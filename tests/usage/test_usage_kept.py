"""A gateway that starts with `store.usage_days` removes older rows of usage; one without it keeps them."""

import asyncio
import time
from pathlib import Path

from msgspec.structs import replace

from dragoman.store import open_store
from store.rows import EVER, row_at
from usage.gateway_process import start_upstreams
from waiting import wait_until

DAY_MS = 86_400_000


async def prepare_store(url: str) -> None:
    store = await open_store(url)
    now_ms = int(time.time() * 1000)
    ages = (400, 31, 29, 0)
    rows = [replace(row_at(now_ms - age * DAY_MS, 0), request_id=str(age)) for age in ages]
    await store.append_usage(rows)
    await store.close()


async def requests(url: str) -> list[str]:
    store = await open_store(url)
    rows = await store.read_usage_rows(EVER)
    await store.close()
    return [row.request_id for row in rows]


def test_a_start_removes_rows_older_than_the_setting_and_none_without_it(store_url: str, tmp_path: Path) -> None:
    asyncio.run(prepare_store(store_url))
    with start_upstreams(tmp_path) as rig:
        with rig.serve(store_url) as served:
            wait_until(lambda: "listens on http" in served.log)
        assert asyncio.run(requests(store_url)) == ["400", "31", "29", "0"]
        with rig.serve(store_url, more="usage_days = 30\n") as served:
            wait_until(lambda: "rows of usage older than 30 days" in served.log)
            assert asyncio.run(requests(store_url)) == ["29", "0"]

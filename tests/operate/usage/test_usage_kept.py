"""With `store.usage_days`, older rows of usage are removed from the start on; without it, none is."""

import asyncio
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.operate.usage.usage_writer import remove_old_usage_forever
from dragoman.store import Store, open_store
from operate.usage.gateway_process import list_stored, start_upstreams
from store.rows import EVER, row_at
from waiting import wait_until, wait_until_async

DAY_MS = 86_400_000
AGES = (400, 31, 29, 0)


async def fill(store: Store) -> None:
    now_ms = int(time.time() * 1000)
    await store.append_usage([replace(row_at(now_ms - age * DAY_MS, 0), request_id=str(age)) for age in AGES])


@pytest.mark.parametrize(("days", "kept"), [(30.0, ["29", "0"]), (None, ["400", "31", "29", "0"])])
def test_rows_older_than_the_setting_are_removed_and_none_without_it(
    store_url: str, days: float | None, kept: list[str]
) -> None:
    looked = 0

    def read_setting() -> float | None:
        nonlocal looked
        looked += 1
        return days

    async def scenario() -> None:
        store = await open_store(store_url)
        await fill(store)
        removing = asyncio.create_task(remove_old_usage_forever(store, read_setting, every_s=0.01))
        await wait_until_async(lambda: looked > 1)
        removing.cancel()
        rows = await store.read_usage_rows(EVER)
        await store.close()
        assert [row.request_id for row in rows] == kept

    asyncio.run(scenario())


def test_a_gateway_removes_old_rows_when_it_starts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/dragoman.db"

    async def prepare() -> None:
        store = await open_store(url)
        await fill(store)
        await store.close()

    asyncio.run(prepare())
    with start_upstreams(tmp_path) as rig, rig.serve(url, more="usage_days = 30\n") as served:
        wait_until(lambda: "removed 2 rows of usage older than 30 days" in served.err)
        assert list_stored(url) == ["0", "29"]

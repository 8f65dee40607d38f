"""A store that an earlier version wrote is brought up to date with its rows."""

import asyncio

from msgspec.structs import astuple, replace

from dragoman.store import open_store
from dragoman.store.usage_rows import RequestSearch, make_id
from store.old_store import COLUMNS_BEFORE_RUNS, find_version, write_old_store
from store.rows import EVER, NOON_MS, row

# The columns of `usage` in the first release of the schema, in the order of UsageRow.
OLD_COLUMNS = (
    *("id", "began_ms", "request", "key", "client", "asked", "spoken", "provider", "model", "wanted", "stream"),
    *("input", "cached", "written", "output", "reasoning", "credits", "source", "cost_nano", "first_token_ms"),
    *("duration_ms", "result", "code", "losses", "attempts"),
)
OLD_STEPS = 3  # migrations of that version


def test_usage_of_an_earlier_version_is_read_under_the_new_names(store_url: str) -> None:
    async def scenario() -> None:
        await write_old_store(store_url, OLD_STEPS, OLD_COLUMNS, [astuple(row(1))])
        store = await open_store(store_url)
        await store.append_usage([row(2)])
        assert await store.read_usage_rows(EVER) == (
            replace(row(1), rounds=1, web_searches=0, web_fetches=0, run=""),
            row(2),
        )
        await store.close()

    asyncio.run(scenario())


def test_rows_of_echo_have_the_name_of_its_protocol(store_url: str) -> None:
    old = replace(row(1), upstream_protocol="native", run="")

    async def scenario() -> None:
        version = find_version("(key, id)")
        await write_old_store(store_url, version, COLUMNS_BEFORE_RUNS, [astuple(old)])
        store = await open_store(store_url)
        assert await store.read_usage_rows(EVER) == (replace(old, upstream_protocol="echo"),)
        await store.close()

    asyncio.run(scenario())


def test_rows_whose_ids_do_not_begin_with_their_time_get_ids_that_do(store_url: str) -> None:
    odd = [replace(row(1), id=b"\xff" * 16, run=""), replace(row(2), id=b"\x01", run=""), replace(row(3), run="")]

    async def scenario() -> None:
        version = find_version("(key, id)")
        await write_old_store(store_url, version, COLUMNS_BEFORE_RUNS, [astuple(one) for one in odd])
        store = await open_store(store_url)
        expected = (
            replace(odd[0], id=make_id(NOON_MS + 1, 2**80 - 1)),
            replace(odd[1], id=(NOON_MS + 2).to_bytes(6, "big") + b"\x01"),
            odd[2],
        )
        assert await store.read_usage_rows(EVER) == expected
        assert (await store.search_requests(RequestSearch())).rows == expected[::-1]
        await store.close()

    asyncio.run(scenario())

"""The clock of PostgreSQL: windows of limits go by it, however wrong that of a machine is."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from dragoman.store import open_store
from dragoman.store.clock import StoreClock
from dragoman.store.usage_rows import RequestSearch
from gateway import Running
from narrowing import present
from raw_http import get, post
from waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from postgres import Postgres

BODY = b'{"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}'


@pytest.fixture
def url(postgres: "Postgres") -> str:
    return postgres.empty_database()


@pytest.mark.parametrize(("ahead_s", "word"), [(1.0, ""), (-1.0, ""), (5.0, "ahead of"), (-5.0, "behind")])
async def test_the_time_is_that_of_the_server(
    url: str, caplog: pytest.LogCaptureFixture, ahead_s: float, word: str
) -> None:
    async with await open_store(url) as store:
        clock = StoreClock(store.database, lambda: time.time() + ahead_s)
        for _ in range(2):
            await clock.learn()
        assert abs(clock.now() - time.time()) < 0.5
        assert not clock.problem
    assert [message for message in caplog.messages if "the clock of this machine" in message] == (
        [f"the clock of this machine is 5.0 s {word} that of {store.name}"] if word else []
    )


@pytest.mark.rest
async def test_a_clock_that_is_right_again_is_noticed_within_seconds(url: str) -> None:
    ahead_s = [70.0]
    async with await open_store(url) as store:
        clock = StoreClock(store.database, lambda: time.time() + ahead_s[0])
        watching = asyncio.ensure_future(clock.watch())
        await wait_until_async(lambda: clock.problem)
        ahead_s[0] = 0.0
        await wait_until_async(lambda: not clock.problem, 30.0)  # half of what passes between two looks otherwise
        watching.cancel()


def test_a_clock_that_is_far_off_makes_a_gateway_unready(tmp_path: Path, url: str) -> None:
    toml = '[providers.echo]\nkind = "echo"\n'
    with Running(toml, tmp_path, stored=("laptop",), store_url=url) as gateway:
        clock = present(gateway.app.usage).store.clock
        assert clock.ahead_s  # it was learned before the first connection
        assert get(gateway.port, "/ready").status == 200
        clock.ahead_s = 70.0
        answer = get(gateway.port, "/ready")
        assert answer.status == 503
        body = msgspec.json.decode(answer.body)
        assert body["status"] == "unready"
        assert body["reason"].startswith("the clock of this machine is 70.0 s ahead of that of postgresql://")
        assert post(gateway.port, "/v1/chat/completions", BODY, key=gateway.keys["laptop"]).status == 200


def test_usage_is_of_the_time_of_the_server(tmp_path: Path, url: str) -> None:
    toml = '[providers.echo]\nkind = "echo"\n'
    with Running(toml, tmp_path, stored=("laptop",), store_url=url) as gateway:
        usage = present(gateway.app.usage)
        usage.store.clock.ahead_s = 1000.0
        assert post(gateway.port, "/v1/chat/completions", BODY, key=gateway.keys["laptop"]).status == 200
        wait_until(lambda: usage.written == 1)
        searched = usage.store.search_requests(RequestSearch(limit=1))
        [row] = asyncio.run_coroutine_threadsafe(searched, gateway.loop).result(60).rows
        assert 1000 <= time.time() - row.time_ms / 1000 < 1060

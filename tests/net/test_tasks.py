"""Background tasks live until they end, and never fail unheard."""

import asyncio
import gc
import logging

import pytest

from dragoman.net.current_request import request_id
from dragoman.net.tasks import spawn, spawn_apart
from fakes.loops import on_both_loops
from waiting import wait_until_async


@on_both_loops
async def test_a_task_without_a_reference_still_ends() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0.01)
        ended.set()

    spawn(work(), name="work")
    gc.collect()
    await asyncio.wait_for(ended.wait(), 60)


@on_both_loops
async def test_a_task_of_its_own_belongs_to_no_request() -> None:
    async def find_request() -> str:
        return request_id.get()

    request_id.set("req_1")
    assert await spawn(find_request(), name="of the request") == "req_1"
    assert await spawn_apart(find_request(), name="of its own") == ""


@on_both_loops
async def test_a_failure_is_logged_by_type_and_place_but_not_by_text(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("sk-fake-secret")

    caplog.set_level(logging.DEBUG)
    spawn(fail(), name="refresh")
    await wait_until_async(lambda: "task refresh failed" in caplog.text)
    gc.collect()
    assert "task refresh failed: ValueError at test_tasks.py" in caplog.text
    assert "sk-fake-secret" not in caplog.text


@on_both_loops
async def test_the_awaiter_gets_result_failure_and_cancellation(caplog: pytest.LogCaptureFixture) -> None:
    async def answer() -> int:
        return 42

    async def fail() -> int:
        raise KeyError

    assert await spawn(answer(), name="answer") == 42
    with pytest.raises(KeyError):
        await spawn(fail(), name="fail")
    sleeper = spawn(asyncio.sleep(30), name="sleeper")
    await asyncio.sleep(0)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    assert "sleeper" not in caplog.text

"""Background tasks live until they end, and never fail unheard."""

import asyncio
import gc
import logging

import pytest

from dragoman.net.tasks import spawn
from net.scenarios import Play


def test_a_task_without_a_reference_still_ends(play: Play) -> None:
    async def scenario() -> None:
        ended = asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(0.01)
            ended.set()

        spawn(work(), name="work")
        gc.collect()
        await asyncio.wait_for(ended.wait(), 20)

    play(scenario())


def test_a_failure_is_logged_by_type_and_place_but_not_by_text(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("sk-fake-secret")

    async def scenario() -> None:
        spawn(fail(), name="refresh")
        await asyncio.sleep(0.01)

    with caplog.at_level(logging.DEBUG):
        play(scenario())
        gc.collect()
    assert "task refresh failed: ValueError at test_tasks.py" in caplog.text
    assert "sk-fake-secret" not in caplog.text


def test_the_awaiter_gets_result_failure_and_cancellation(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
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

    play(scenario())
    assert "sleeper" not in caplog.text

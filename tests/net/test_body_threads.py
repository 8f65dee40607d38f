"""Work on large bodies runs in a thread, in the context of its request."""

import asyncio
import threading
from contextvars import ContextVar
from functools import partial

import pytest

from dragoman.net.body_threads import HUGE_BYTES, LARGE_BYTES, run_off_loop
from proxy.in_memory import run

WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def thread_for(size: int) -> str:
    return await run_off_loop(size, lambda: threading.current_thread().name)


def test_small_bodies_are_worked_on_at_once() -> None:
    assert run(thread_for(0)) == run(thread_for(LARGE_BYTES)) == threading.current_thread().name


def test_huge_bodies_do_not_hold_up_large_ones() -> None:
    async def both() -> None:
        release = threading.Event()
        huge = asyncio.create_task(run_off_loop(HUGE_BYTES + 1, lambda: release.wait(30)))
        try:
            assert (await thread_for(HUGE_BYTES)).startswith("large-body")
            assert not huge.done()
        finally:
            release.set()
        assert await huge
        assert (await thread_for(HUGE_BYTES + 1)).startswith("huge-body")

    run(both())


@pytest.mark.parametrize("size", [LARGE_BYTES + 1, HUGE_BYTES + 1])
def test_the_next_work_starts_only_after_the_event_loop_has_come_round(size: int) -> None:
    async def block_the_loop() -> int:
        done: list[int] = []
        works = [asyncio.create_task(run_off_loop(size, partial(done.append, number))) for number in range(3)]
        while not done:  # noqa: ASYNC110
            await asyncio.sleep(0)
        threading.Event().wait(0.2)
        done_meanwhile = len(done)
        await asyncio.gather(*works)
        assert done == [0, 1, 2]
        return done_meanwhile

    assert run(block_the_loop()) == 1


def test_work_that_is_given_up_does_not_hold_up_the_next() -> None:
    async def give_up() -> str:
        release = threading.Event()
        works = [asyncio.create_task(run_off_loop(HUGE_BYTES + 1, lambda: release.wait(30))) for _ in range(3)]
        await asyncio.sleep(0.05)
        for work in works:
            work.cancel()
        release.set()
        await asyncio.gather(*works, return_exceptions=True)
        return await thread_for(HUGE_BYTES + 1)

    assert run(give_up()).startswith("huge-body")


@pytest.mark.parametrize("size", [0, LARGE_BYTES + 1, HUGE_BYTES + 1])
def test_the_context_of_the_request_goes_along(size: int) -> None:
    async def ask() -> str:
        WHO.set("this request")
        return await run_off_loop(size, WHO.get)

    assert run(ask()) == "this request"


@pytest.mark.parametrize("size", [0, LARGE_BYTES + 1])
def test_an_exception_reaches_the_caller(size: int) -> None:
    with pytest.raises(ZeroDivisionError):
        run(run_off_loop(size, lambda: 1 // 0))

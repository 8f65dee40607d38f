"""Requests that wait for what others have reserved: one line before each counter, served in order."""

import asyncio
from collections.abc import Awaitable

import pytest

from dragoman.tenancy.waiting_lines import LinesFull, Place, WaitingLines
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from waiting import wait_until_async

NEVER_S = 3600.0
SPENT = Failure(Kind.SPENT, "spent")


async def wait_and_leave(place: Place, served: list[Place]) -> None:
    try:
        await place.wait()
        served.append(place)
    finally:
        place.leave()


def spawn_all(*waiting: Awaitable[None]) -> list["asyncio.Future[None]"]:
    return [asyncio.ensure_future(one) for one in waiting]


async def test_the_first_asks_when_something_was_settled_and_lets_the_next_one_ask() -> None:
    lines, served = WaitingLines(lambda: NEVER_S), list[Place]()
    places = [lines.join("all:usd:2026-11") for _ in range(5)]
    tasks = spawn_all(*(wait_and_leave(place, served) for place in places))
    await asyncio.sleep(0)
    assert served == []
    lines.wake(["key:k:usd:2026-11", "all:usd:2026-11"])
    await asyncio.gather(*tasks)
    assert served == places
    assert (lines.count, lines.find(["all:usd:2026-11"])) == (0, None)


async def test_the_first_asks_by_itself_now_and_then_and_the_others_do_not() -> None:
    lines = WaitingLines(lambda: 0.01)
    first, second = lines.join("c"), lines.join("c")
    [waiting] = spawn_all(second.wait())
    for _ in range(3):
        await first.wait()
    assert not waiting.done()
    first.leave()
    await waiting
    second.leave()


async def test_one_that_leaves_from_the_middle_changes_nothing_for_the_others() -> None:
    lines, served = WaitingLines(lambda: NEVER_S), list[Place]()
    places = [lines.join("c") for _ in range(3)]
    tasks = spawn_all(*(wait_and_leave(place, served) for place in places))
    await asyncio.sleep(0)
    tasks[1].cancel()
    await wait_until_async(tasks[1].done)
    assert lines.count == 2
    lines.wake(["c"])
    await asyncio.gather(tasks[0], tasks[2])
    assert served == [places[0], places[2]]


async def test_all_leave_at_once_when_the_limit_is_spent() -> None:
    lines, served = WaitingLines(lambda: NEVER_S), list[Place]()
    tasks = spawn_all(*(wait_and_leave(lines.join("c"), served) for _ in range(100)))
    await asyncio.sleep(0)
    lines.end("c", SPENT)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [RequestError] * 100
    assert (served, lines.count) == ([], 0)


def test_no_more_wait_than_may() -> None:
    lines = WaitingLines(lambda: NEVER_S, most=2)
    first, _ = lines.join("a"), lines.join("b")
    with pytest.raises(LinesFull):
        lines.join("a")
    first.leave()
    assert lines.find(["a", "b"]) == "b"
    lines.join("a")

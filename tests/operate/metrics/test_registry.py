"""Counters that workers share, in real processes that are killed."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from dragoman.operate.metrics import registry as module
from dragoman.operate.metrics.readings import Reading, merge_readings
from dragoman.operate.metrics.registry import MetricsRegistry, SharedCounters

ANSWERED = "dragoman_requests_answered_total"
CONNECTIONS = "dragoman_connections"


def readings(answered: int, connections: int = 0) -> list[Reading]:
    return [Reading(ANSWERED, (), (answered,)), Reading(CONNECTIONS, (), (connections,))]


def values_of(found: list[Reading]) -> dict[str, float]:
    return {reading.name: reading.values[0] for reading in merge_readings(found)}


class Worker:
    """A forked process that does its work, reports that, and lives until it is killed."""

    def __init__(self, work: Callable[[], None]) -> None:
        out, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                work()
                os.write(into, b"done")
            finally:
                while True:
                    time.sleep(60)
        os.close(into)
        assert os.read(out, 4) == b"done"
        os.close(out)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def test_each_worker_reads_the_readings_of_all() -> None:
    shared = SharedCounters(2)
    other = Worker(lambda: shared.claim_slot().publish(readings(40, 3)))
    try:
        slot = shared.claim_slot()
        slot.publish(readings(2, 1))
        assert values_of(slot.read_all()) == {ANSWERED: 42, CONNECTIONS: 4}
        slot.publish(readings(3, 0))
        assert values_of(slot.read_all()) == {ANSWERED: 43, CONNECTIONS: 3}
    finally:
        other.kill()


def test_no_counter_decreases_when_a_worker_dies_and_another_takes_its_slot() -> None:
    shared = SharedCounters(2)
    slot = shared.claim_slot()
    slot.publish(readings(2))
    for round in range(1, 4):
        worker = Worker(lambda: shared.claim_slot().publish(readings(10)))
        assert values_of(slot.read_all())[ANSWERED] == 2 + 10 * round
        worker.kill()
        assert values_of(slot.read_all())[ANSWERED] == 2 + 10 * round


def test_the_counters_of_a_dead_worker_are_kept_and_its_gauges_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedCounters(2)
    worker = Worker(lambda: shared.claim_slot().publish(readings(10, 5)))
    worker.kill()
    slot = shared.claim_slot()  # takes over the slot of the dead worker
    slot.publish(readings(0, 1))
    assert values_of(slot.read_all()) == {ANSWERED: 10, CONNECTIONS: 1}
    monkeypatch.setattr(module, "STALE_S", -1.0)
    assert values_of(slot.read_all()) == {ANSWERED: 10}


def test_a_snapshot_that_is_half_written_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedCounters(2)
    other = Worker(lambda: shared.claim_slot().publish(readings(40)))
    try:
        slot = shared.claim_slot()
        assert values_of(slot.read_all())[ANSWERED] == 40
        os.pwrite(shared._file.fileno(), b"\xff" * 8, module._HEAD.size)
        assert values_of(slot.read_all())[ANSWERED] == 40
    finally:
        other.kill()


def test_readings_that_do_not_fit_into_a_slot_raise_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLOT_BYTES", 4096)
    shared = SharedCounters(1)
    slot = shared.claim_slot()
    many = [Reading("dragoman_retries_total", ("p" * 40, str(number)), (1,)) for number in range(1000)]
    with pytest.raises(OSError, match="do not fit"):
        slot.publish(many)
    assert slot.read_all() == []


def test_there_are_as_many_slots_as_workers() -> None:
    shared = SharedCounters(1)
    holder = Worker(lambda: shared.claim_slot().publish([]))
    try:
        with pytest.raises(OSError, match="more workers than slots"):
            shared.claim_slot()
    finally:
        holder.kill()


async def test_very_many_scrapes_at_once_share_few_answers_none_of_them_older_than_its_question() -> None:
    registry, reads = MetricsRegistry(), 0

    def count_reads() -> list[Reading]:
        nonlocal reads
        reads += 1
        return [Reading(ANSWERED, (), (reads,))]

    registry.add_source(count_reads)
    first = asyncio.create_task(registry.scrape())
    await asyncio.sleep(0)
    await asyncio.gather(first, *(registry.scrape() for _ in range(500)))
    assert reads <= 2
    for number in range(reads + 1, reads + 4):
        assert f"{ANSWERED} {number}\n".encode() in await registry.scrape()


async def test_a_scraper_that_leaves_takes_no_answer_from_the_others() -> None:
    registry = MetricsRegistry()
    leaving, staying = (asyncio.create_task(registry.scrape()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert b"dragoman_build_info" in await staying

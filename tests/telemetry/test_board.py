"""The board on which workers post their readings: real processes, real deaths."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from dragoman.observers.metrics_text import Reading, joined
from dragoman.telemetry import board as module
from dragoman.telemetry.board import Board

ANSWERED = "dragoman_requests_answered_total"
CONNECTIONS = "dragoman_connections"


def readings(answered: int, connections: int = 0) -> list[Reading]:
    return [Reading(ANSWERED, (), (answered,)), Reading(CONNECTIONS, (), (connections,))]


def told(found: list[Reading]) -> dict[str, float]:
    return {reading.name: reading.values[0] for reading in joined(found)}


class Worker:
    """A forked process that does one thing, says so, and lives until it is killed."""

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


def test_whoever_is_asked_tells_of_all_workers() -> None:
    board = Board(2)
    other = Worker(lambda: board.sit_down().post(readings(40, 3)))
    try:
        seat = board.sit_down()
        seat.post(readings(2, 1))
        assert told(seat.read_all()) == {ANSWERED: 42, CONNECTIONS: 4}
        seat.post(readings(3, 0))
        assert told(seat.read_all()) == {ANSWERED: 43, CONNECTIONS: 3}
    finally:
        other.kill()


def test_no_count_falls_when_a_worker_dies_and_another_takes_its_place() -> None:
    board = Board(2)
    seat = board.sit_down()
    seat.post(readings(2))
    for round in range(1, 4):
        worker = Worker(lambda: board.sit_down().post(readings(10)))
        assert told(seat.read_all())[ANSWERED] == 2 + 10 * round
        worker.kill()
        assert told(seat.read_all())[ANSWERED] == 2 + 10 * round


def test_a_worker_not_heard_of_for_long_keeps_its_counts_and_no_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(2)
    worker = Worker(lambda: board.sit_down().post(readings(10, 5)))
    worker.kill()
    seat = board.sit_down()  # the dead one's place stays empty no longer than this
    seat.post(readings(0, 1))
    assert told(seat.read_all()) == {ANSWERED: 10, CONNECTIONS: 1}
    monkeypatch.setattr(module, "STALE_S", -1.0)
    assert told(seat.read_all()) == {ANSWERED: 10}


def test_a_post_half_written_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(2)
    other = Worker(lambda: board.sit_down().post(readings(40)))
    try:
        seat = board.sit_down()
        assert told(seat.read_all())[ANSWERED] == 40
        os.pwrite(board._file.fileno(), b"\xff" * 8, module._HEAD.size)
        assert told(seat.read_all())[ANSWERED] == 40
    finally:
        other.kill()


def test_more_than_there_is_room_for_is_refused_and_harms_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOT_BYTES", 4096)
    board = Board(1)
    seat = board.sit_down()
    many = [Reading("dragoman_retries_total", ("p" * 40, str(number)), (1,)) for number in range(1000)]
    with pytest.raises(OSError, match="room"):
        seat.post(many)
    assert seat.read_all() == []


def test_there_are_as_many_seats_as_workers() -> None:
    board = Board(1)
    holder = Worker(lambda: board.sit_down().post([]))
    try:
        with pytest.raises(OSError, match="more workers than seats"):
            board.sit_down()
    finally:
        holder.kill()

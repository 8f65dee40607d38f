"""kill -9 under load: whatever ended more than a second before has its row, and the store is sound."""

import asyncio
import signal
import threading
import time
from pathlib import Path

import apsw

from dragoman.store import open_store
from dragoman.store.usage_rows import Span
from usage.asking import Question, ask_all, mixed
from usage.serving import rigged, wait_for

EVER = Span(0, 2**62)
KILLS = 3
PROMISED_S = 1.0
ENOUGH = 100


async def requests_stored(url: str) -> set[str]:
    store = await open_store(url)
    try:
        rows = await store.usage_rows(EVER)
    finally:
        await store.close()
    names = {row.request_id for row in rows}
    assert len(names) == len(rows)
    return names


def test_kill_9_loses_nothing_older_than_a_second(store_url: str, tmp_path: Path) -> None:
    ended: dict[str, float] = {}
    kept: set[str] = set()

    def heard(question: Question, status: int) -> None:
        ended[question.id] = time.monotonic()

    def promised() -> set[str]:
        """By the last answer and not by the clock: the machine may have held the gateway up since."""
        times = ended.copy()
        last = max(times.values(), default=0.0)
        return {name for name, at in times.items() if at < last - PROMISED_S}

    def load(port: int, start: int) -> None:
        try:
            asyncio.run(ask_all(port, mixed(10**6, start), clients=4, heard=heard))
        except* (OSError, EOFError):
            pass  # the gateway is gone

    with rigged(tmp_path) as rig:
        for kill in range(KILLS):
            with rig.serve(store_url) as served:
                asking = threading.Thread(target=load, args=(served.port, kill * 10**6))
                asking.start()
                wait_for(lambda: len(promised()) > ENOUGH)
                time.sleep(kill * 0.17)  # not always at the same moment of a pause between two writes
                served.end(signal.SIGKILL)
                asking.join()
            kept |= promised()
            assert len(kept) > ENOUGH
            ended.clear()
            assert kept - asyncio.run(requests_stored(store_url)) == set()
    if store_url.startswith("sqlite"):
        connection = apsw.Connection(store_url.removeprefix("sqlite:///"))
        assert connection.pragma("integrity_check") == "ok"
        connection.close()


def test_a_stop_loses_nothing_at_all(store_url: str, tmp_path: Path) -> None:
    with rigged(tmp_path) as rig, rig.serve(store_url) as served:
        statuses = asyncio.run(ask_all(served.port, mixed(48), clients=8))
        served.end(signal.SIGTERM)
    assert len(statuses) == 48
    assert asyncio.run(requests_stored(store_url)) == {f"question-{number}" for number in range(48)}


def test_several_workers_write_side_by_side(store_url: str, tmp_path: Path) -> None:
    with rigged(tmp_path) as rig, rig.serve(store_url, "--workers", "2") as served:
        asyncio.run(ask_all(served.port, mixed(400), clients=16))
        served.end(signal.SIGTERM)
    assert asyncio.run(requests_stored(store_url)) == {f"question-{number}" for number in range(400)}

"""After kill -9 under load, requests that ended more than a second before have a row, and the store is valid."""

import asyncio
import signal
import threading
import time
from pathlib import Path

import apsw

from dragoman.store import open_store
from dragoman.store.usage_rows import UsageSpan
from usage.client_requests import NumberedRequest, mix_requests, send_all
from usage.gateway_process import start_upstreams
from waiting import wait_until

EVER = UsageSpan(0, 2**62)
KILLS = 3
PROMISED_S = 1.0
ENOUGH = 100


async def requests_stored(url: str) -> set[str]:
    store = await open_store(url)
    try:
        rows = await store.read_usage_rows(EVER)
    finally:
        await store.close()
    names = {row.request_id for row in rows}
    assert len(names) == len(rows)
    return names


def test_a_killed_process_loses_no_row_older_than_a_second(store_url: str, tmp_path: Path) -> None:
    ended: dict[str, float] = {}
    kept: set[str] = set()

    def on_response(request: NumberedRequest, status: int) -> None:
        ended[request.id] = time.monotonic()

    def list_promised() -> set[str]:
        """Measured by the last response, not by the clock: a busy machine may have stopped the gateway since."""
        times = ended.copy()
        last = max(times.values(), default=0.0)
        return {name for name, at in times.items() if at < last - PROMISED_S}

    def load(port: int, start: int) -> None:
        try:
            asyncio.run(send_all(port, mix_requests(10**6, start), clients=4, on_response=on_response))
        except* (OSError, EOFError):
            pass  # the gateway was killed

    with start_upstreams(tmp_path) as rig:
        for kill in range(KILLS):
            with rig.serve(store_url) as served:
                client_thread = threading.Thread(target=load, args=(served.port, kill * 10**6))
                client_thread.start()
                wait_until(lambda: len(list_promised()) > ENOUGH)
                time.sleep(kill * 0.17)  # at different times between two writes
                served.end(signal.SIGKILL)
                client_thread.join()
            kept |= list_promised()
            assert len(kept) > ENOUGH
            ended.clear()
            assert kept - asyncio.run(requests_stored(store_url)) == set()
    if store_url.startswith("sqlite"):
        connection = apsw.Connection(store_url.removeprefix("sqlite:///"))
        assert connection.pragma("integrity_check") == "ok"
        connection.close()


def test_a_stopped_process_loses_no_row(store_url: str, tmp_path: Path) -> None:
    with start_upstreams(tmp_path) as rig, rig.serve(store_url) as served:
        statuses = asyncio.run(send_all(served.port, mix_requests(48), clients=8))
        served.end(signal.SIGTERM)
    assert len(statuses) == 48
    assert asyncio.run(requests_stored(store_url)) == {f"request-{number}" for number in range(48)}


def test_several_workers_write_at_the_same_time(store_url: str, tmp_path: Path) -> None:
    with start_upstreams(tmp_path) as rig, rig.serve(store_url, "--workers", "2") as served:
        asyncio.run(send_all(served.port, mix_requests(400), clients=16))
        served.end(signal.SIGTERM)
    assert asyncio.run(requests_stored(store_url)) == {f"request-{number}" for number in range(400)}

"""After kill -9 under load, requests that ended more than a second before have a row, and the store is valid."""

import asyncio
import signal
import threading
import time
from pathlib import Path

import apsw
import pytest

from operate.usage.client_requests import NumberedRequest, mix_requests, send_all
from operate.usage.gateway_process import list_stored, name_requests, start_upstreams
from waiting import wait_until

PROMISED_S = 1.0
ENOUGH = 100


@pytest.mark.parametrize(
    ("store_url", "kills"),
    [
        ("sqlite", 1),
        pytest.param("sqlite", 3, marks=pytest.mark.rest),
        pytest.param("postgresql", 3, marks=pytest.mark.rest),
    ],
    indirect=["store_url"],
)
def test_a_killed_process_loses_no_row_older_than_a_second(store_url: str, kills: int, tmp_path: Path) -> None:
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
        for kill in range(kills):
            with rig.serve(store_url) as served:
                client_thread = threading.Thread(target=load, args=(served.port, kill * 10**6))
                client_thread.start()
                wait_until(lambda: len(list_promised()) > ENOUGH)
                time.sleep(kill * 0.17)  # at different times between two writes
                served.end(signal.SIGKILL)
                client_thread.join()
            kept |= list_promised()
            ended.clear()
            stored = list_stored(store_url)
            assert len(stored) == len(set(stored))
            assert kept - set(stored) == set()
    if store_url.startswith("sqlite"):
        connection = apsw.Connection(store_url.removeprefix("sqlite:///"))
        assert connection.pragma("integrity_check") == "ok"
        connection.close()


@pytest.mark.parametrize(
    ("store_url", "workers"),
    [
        ("sqlite", 1),
        ("postgresql", 2),
        pytest.param("sqlite", 2, marks=pytest.mark.rest),
        pytest.param("postgresql", 1, marks=pytest.mark.rest),
    ],
    indirect=["store_url"],
)
def test_a_stopped_gateway_loses_no_row_of_any_worker(store_url: str, workers: int, tmp_path: Path) -> None:
    with start_upstreams(tmp_path) as rig, rig.serve(store_url, "--workers", str(workers)) as served:
        asyncio.run(send_all(served.port, mix_requests(200), clients=16))
        assert served.end(signal.SIGTERM) == 0
    assert list_stored(store_url) == name_requests(200)

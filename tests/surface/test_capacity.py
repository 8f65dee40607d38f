"""Requests above the limit are rejected at once, with the time to retry."""

import threading
import time
from pathlib import Path

import pytest

from fakes.upstream import Answer, Gate
from surface.outside import ONCE, PROTOCOLS, outside
from surface.vendor_replies import STREAM


@pytest.mark.parametrize("client", PROTOCOLS)
def test_over_capacity_is_reported_with_a_retry_time(tmp_path: Path, client: str) -> None:
    with outside(tmp_path, ONCE + "[server]\nmax_requests = 2\n") as gate:
        is_rejected = threading.Event()
        fake = gate.play("chat", Answer(STREAM["chat"], gate=Gate(is_rejected)))
        statuses: list[int] = []
        busy = [
            threading.Thread(target=lambda: statuses.append(gate.ask(client, "chat/m", True).status)) for _ in range(2)
        ]
        for thread in busy:
            thread.start()
        while len(fake.calls) < 2:
            time.sleep(0.01)
        answer = gate.ask(client, "chat/m", True)
        assert statuses == []  # the others are still waited for
        is_rejected.set()
        for thread in busy:
            thread.join()
        assert statuses == [200, 200]
        assert answer.status == (529 if client == "messages" else 503)
        assert answer.headers["retry-after"] == "1"
        assert len(fake.calls) == 2
        gate.play("chat", Answer(STREAM["chat"]))
        until = time.monotonic() + 60.0  # a client may have its whole reply before its place is free again
        while (status := gate.ask(client, "chat/m", True).status) != 200 and time.monotonic() < until:
            time.sleep(0.05)
        assert status == 200

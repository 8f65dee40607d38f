"""Requests above the limit are rejected at once, with the time to retry."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fakes.upstream import Gate
from rig import ONCE, PROTOCOLS, run_rig
from scripting import write_reply
from waiting import wait_until


def test_over_capacity_is_reported_with_a_retry_time(tmp_path: Path) -> None:
    settings = ONCE + "[server]\nmax_requests = 2\n"
    with run_rig(tmp_path, settings, upstreams=["chat"]) as gate, ThreadPoolExecutor(2) as pool:
        for client in PROTOCOLS:
            is_rejected = threading.Event()
            fake = gate.play("chat", write_reply("chat", "Hello", gate=Gate(is_rejected)))
            busy = [pool.submit(gate.ask, client, "chat", stream=True) for _ in range(2)]
            wait_until(lambda: len(fake.calls) == 2)  # noqa: B023
            answer = gate.ask(client, "chat", stream=True)
            assert not any(reply.done() for reply in busy)  # they are still waited for
            is_rejected.set()
            assert [reply.result().status for reply in busy] == [200, 200]
            assert answer.status == (529 if client == "messages" else 503)
            assert answer.headers["retry-after"] == "1"
            assert len(fake.calls) == 2
            # A client may have its whole reply before its place is free again.
            wait_until(lambda: gate.ask(client, "chat", stream=True).status == 200)  # noqa: B023

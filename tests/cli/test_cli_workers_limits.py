"""`serve --workers 2` under limits: one count for all workers, which outlives the worker that has it."""

import json
import os
import signal

import pytest

from fakes.upstream import Answer, FakeUpstream
from gateway import provider_section
from raw_http import Answered, ask, request_bytes
from scripting import encode_chat
from scripting.replies import ScriptedReply, Text
from shell import Served, Shell
from waiting import wait_until

CHAT = "/v1/chat/completions"
REPLY = encode_chat.encode_whole(ScriptedReply((Text("Hello"),)))
BODY = json.dumps({"model": "up/m", "messages": [{"role": "user", "content": "Hi"}]}).encode()


def send(served: Served) -> Answered:
    return ask(served.port, request_bytes(CHAT, BODY, key=served.key))


def count_answered(shell: Shell, served: Served) -> int:
    """How many stored rows are of requests that an upstream answered."""
    rows = shell.run("usage", "--rows", "--json", DRAGOMAN_API_KEY=served.key).json
    return sum((row["cost_nano_usd"] or 0) > 0 for row in rows)


def test_a_limit_holds_for_all_workers_together(shell: Shell) -> None:
    with FakeUpstream(keep_alive=False, answers=[Answer(REPLY)]) as fake:
        path = shell.write("two.toml", "[limits.key]\nrequests_per_min = 5\n" + provider_section("chat", fake.url))
        with shell.serve("--config", str(path), "--workers", "2") as served:
            wait_until(lambda: len(served.workers) == 2)
            statuses = [send(served).status for _ in range(20)]
            assert statuses == [200] * 5 + [429] * 15
            assert served.end() == 0


@pytest.mark.rest
def test_a_limit_that_is_set_while_workers_run_holds_for_all_of_them(shell: Shell) -> None:
    with FakeUpstream(keep_alive=False, answers=[Answer(REPLY)]) as fake:
        section = provider_section("chat", fake.url)
        path = shell.write("two.toml", section)
        with shell.serve("--config", str(path), "--workers", "2") as served:
            wait_until(lambda: len(served.workers) == 2)
            assert {send(served).status for _ in range(10)} == {200}
            shell.write("two.toml", "[limits.key]\nrequests_per_min = 0\n" + section)
            wait_until(lambda: {send(served).status for _ in range(10)} == {402})


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.rest)], ids=["killed", "stopped"]
)
def test_when_the_worker_that_counts_is_gone_another_one_counts_what_was_spent(
    shell: Shell, number: signal.Signals
) -> None:
    price = '[[prices]]\nmodel = "up/*"\ninput = 100000\noutput = 100000\n'
    limit = "[limits.key]\nusd_per_month = 3\n"
    with FakeUpstream(keep_alive=False, answers=[Answer(REPLY)]) as fake:
        path = shell.write("two.toml", limit + price + provider_section("chat", fake.url))
        with shell.serve("--config", str(path), "--workers", "2") as served:
            wait_until(lambda: len(served.workers) == 2)
            wait_until(lambda: send(served).status == 402)
            spent_by = len(fake.calls)
            wait_until(lambda: count_answered(shell, served) == spent_by)  # a worker's last rows end with it
            first = min(served.workers)
            os.kill(first, number)
            wait_until(lambda: len(served.workers - {first}) == 2)
            wait_until(lambda: send(served).status == 402)
            assert len(fake.calls) == spent_by

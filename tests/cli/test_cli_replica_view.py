"""Replicas as processes of their own, one with two workers: each shows the requests of all, even if one is killed."""

import signal
from contextlib import suppress
from os import kill
from pathlib import Path

import pytest

from asking import PATHS, send
from fakes.upstream import FakeUpstream
from gateway import KEY, provider_section
from postgres import Postgres
from scripting import write_reply
from shell import Served, Shell
from valkey_server import ValkeyServer
from waiting import wait_until
from wire_json import JsonObject


def read_feed(served: Served) -> tuple[JsonObject, list[JsonObject]]:
    """Return what a worker says of the feed, and its rows."""
    hello, rows = send(served, "GET", "/api/v1/feed").events[:2]
    return hello, rows["rows"]


def ports(served: Served) -> set[int]:
    """Return the ports of the replicas of which a feed has rows."""
    return {int(row["replica"].rpartition(":")[2]) for row in read_feed(served)[1]}


def wait_until_whole(served: Served, rows: int = 0, replicas: int = 1) -> None:
    """Wait until a feed has the rows of all processes: this number of rows, of this number of replicas."""

    def is_whole() -> bool:
        hello, found = read_feed(served)
        is_all = len(found) == rows and len({row["replica"] for row in found}) == (replicas if rows else 0)
        return not hello["is_partial"] and is_all

    wait_until(is_whole, patience_s=20.0)


def ask(served: Served) -> None:
    body = {"model": "up/m", "messages": [{"role": "user", "content": "Hi"}]}
    assert send(served, "POST", PATHS["chat"], body).status == 200


@pytest.mark.rest
def test_the_view_of_a_replica_survives_another_one_that_is_killed(
    tmp_path: Path, postgres: Postgres, valkey: ValkeyServer
) -> None:
    store = f'[store]\nurl = "{postgres.empty_database()}"\nshared = "{valkey.url}"\n'
    with FakeUpstream(answers=[write_reply("chat", "Yes.", stream=False)]) as fake:
        shells = [Shell(tmp_path / name) for name in ("one", "two")]
        files = [str(shell.write("up.toml", store + provider_section("chat", fake.url))) for shell in shells]
        with (
            shells[0].serve("--config", files[0], "--workers", "2", DRAGOMAN_API_KEY=KEY) as two_workers,
            shells[1].serve("--config", files[1], DRAGOMAN_API_KEY=KEY) as other,
        ):
            wait_until(lambda: len(two_workers.workers) == 2)
            for served in (two_workers, other):
                wait_until_whole(served)
            for served in (two_workers, other):
                for _ in range(6):
                    ask(served)
            for served in (two_workers, other):
                wait_until_whole(served, rows=12, replicas=2)
            for worker in two_workers.workers:
                with suppress(ProcessLookupError):
                    kill(worker, signal.SIGKILL)
            kill(two_workers.pid, signal.SIGKILL)
            wait_until(lambda: ports(other) == {other.port}, patience_s=10.0)
            wait_until_whole(other, rows=6)

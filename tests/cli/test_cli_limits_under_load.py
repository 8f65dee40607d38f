"""Limits while many clients send: a gateway that is killed whole, and limits that are edited."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException

import pytest

from asking import ask, send
from dragoman.store import open_store
from dragoman.store.usage_rows import UsageSpan
from fakes.upstream import Answer, FakeUpstream
from gateway import provider_section
from scripting import encode_chat
from scripting.replies import ScriptedReply, Text, Tokens
from shell import Served, Shell
from waiting import wait_until

KEY = "dgm_fake-key-of-those-who-ask-all-the-time"
PRICE = '[[prices]]\nmodel = "up/*"\ninput = 1.234567\noutput = 9.876543\n'
LIMITS = "[limits]\nusd_per_total = 1000\nconcurrent = 1000\n"
REPLY = encode_chat.encode_whole(ScriptedReply((Text("Hello"),), tokens=Tokens(1003, 17)))
IN_FORCE_S = 1.0
ENOUGH = 100  # requests
KILLS = 50
NANO = 10**9


@dataclass
class Load:
    """What clients got, and when they asked."""

    answers: list[tuple[float, int]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def send_all(self, served: Served) -> None:
        while not self.over.is_set():
            began = time.monotonic()
            try:
                self.answers.append((began, ask(served, "chat", "up/m", key=KEY).status))
            except (OSError, HTTPException):
                return  # the gateway was killed

    def list_since(self, moment: float) -> list[int]:
        return [status for began, status in self.answers.copy() if began >= moment]


@contextmanager
def sending(served: Served, clients: int) -> Iterator[Load]:
    load = Load()
    threads = [threading.Thread(target=load.send_all, args=(served,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.over.set()
        for thread in threads:
            thread.join()


def sum_rows(url: str) -> int:
    async def read() -> int:
        async with await open_store(url) as store:
            return sum(row.cost_nano_usd or 0 for row in await store.read_usage_rows(UsageSpan(0, 2**62)))

    return asyncio.run(read())


def read_levels(served: Served) -> dict[str, tuple[int, int]]:
    """Return what is spent and reserved of each limit: requests, or nanodollars."""
    levels = {}
    for row in send(served, "GET", "/api/v1/limits", key=KEY).json["limits"]:
        factor = NANO if row["limit"].startswith("usd") else 1
        levels[row["limit"]] = round(row["spent"] * factor), round(row["reserved"] * factor)
    return levels


@pytest.mark.rest
def test_after_a_gateway_is_killed_what_is_spent_is_the_sum_of_the_rows(shell: Shell) -> None:
    url = f"sqlite:///{shell.home}/killed.db"
    with FakeUpstream(answers=[Answer(REPLY, delay_s=0.02)]) as fake:
        toml = f'[store]\nurl = "{url}"\n{LIMITS}{PRICE}{provider_section("chat", fake.url)}'
        path = str(shell.write("killed.toml", toml))
        spent = 0
        for _ in range(KILLS):
            with shell.serve("--config", path, DRAGOMAN_API_KEY=KEY) as served, sending(served, 8) as load:
                wait_until(lambda load=load: len(load.answers) > ENOUGH)  # type: ignore[misc]
                served.end(signal.SIGKILL)
            with shell.serve("--config", path, DRAGOMAN_API_KEY=KEY) as served:
                levels = read_levels(served)
                assert levels == {"usd_per_total": (sum_rows(url), 0), "concurrent": (0, 0)}
                assert levels["usd_per_total"][0] > spent
                spent = levels["usd_per_total"][0]


@pytest.mark.rest
def test_limits_that_are_edited_under_load_are_in_force_within_a_second(shell: Shell) -> None:
    with FakeUpstream(answers=[Answer(REPLY)]) as fake:
        path = str(shell.write("edited.toml", LIMITS + PRICE + provider_section("chat", fake.url)))
        with (
            shell.serve("--config", path, "--workers", "2", DRAGOMAN_API_KEY=KEY) as served,
            sending(served, 50) as load,
        ):
            wait_until(lambda: len(served.workers) == 2)
            wait_until(lambda: len(load.answers) > ENOUGH)
            for number in range(10):
                limits, expected = ({"requests_per_min": 0}, 402) if number % 2 == 0 else ({}, 200)
                assert send(served, "PUT", "/api/v1/limits/all/all", limits, key=KEY).status == 200
                since = time.monotonic() + IN_FORCE_S
                wait_until(lambda since=since: len(load.list_since(since)) > ENOUGH)  # type: ignore[misc]
                assert set(load.list_since(since)) == {expected}, number

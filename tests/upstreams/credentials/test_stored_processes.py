"""Processes that renew one credential in the store: each refresh token is used once, and a kill loses no login."""

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dragoman.store import open_store
from dragoman.upstreams.credentials.stored import make_stored_credentials
from fakes.kiro import FakeKiro, json_answer
from fakes.upstream import Answer, ReceivedRequest
from postgres import Postgres
from upstreams.credentials.stored_kit import ENVIRON, expired, look, put
from waiting import wait_until

PROGRAM = Path(__file__).with_name("renewing_process.py")
REFRESH = "/refreshToken"
LIFE_S = 7200
LONGEST_S = 0.02  # before the issuer uses a token
KILLS = 100


class StrictKiro(FakeKiro):
    """Counts refresh tokens that are used twice. It takes its time, and then uses no token of a client that is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: set[str] = set()
        self.reused = 0
        self.connections = 0
        self.pid = 0  # of the client, if there is one only

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await super()._serve(reader, writer)
        finally:
            self.connections -= 1

    def _answer(self, request: ReceivedRequest) -> Answer:
        if request.path == REFRESH:
            time.sleep(random.uniform(0, LONGEST_S))
            if self.pid and not is_alive(self.pid):
                return json_answer({"message": "The client is gone."}, 500)
            used = str(request.json["refreshToken"])
            self.reused += used in self.spent
            self.spent.add(used)
        return super()._answer(request)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class Child:
    """The process, and the lines that it has printed."""

    def __init__(self, url: str, root: str, mode: str) -> None:
        environ = {**os.environ, **ENVIRON}
        words = [sys.executable, str(PROGRAM), url, root, mode]
        self._process = subprocess.Popen(
            words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def tokens(self) -> list[str]:
        return [line for line in self.lines if line not in ("ready", "replied")]

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._reader.join(30)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))


def push(url: str, fake: FakeKiro) -> None:
    async def run() -> None:
        async with await open_store(url) as store:
            await put(make_stored_credentials(store, url, ENVIRON), expired(fake))

    asyncio.run(run())


def is_lost(url: str, fake: FakeKiro) -> bool:
    """Return whether the issuer knows the stored refresh token no more."""

    async def run() -> bool:
        async with await open_store(url) as store:
            _, table = await look(make_stored_credentials(store, url, ENVIRON))
            return table["refreshToken"] not in fake.refresh

    return asyncio.run(run())


@contextmanager
def start_processes(url: str, fake: FakeKiro, count: int) -> Iterator[Sequence[Child]]:
    with ExitStack() as stack:
        children = []
        for _ in range(count):
            child = Child(url, fake.root, "obey")
            stack.callback(child.close)
            children.append(child)
        for child in children:
            wait_until(lambda child=child: child.lines)  # type: ignore[misc]
        yield children


def renew_at_each_expiry(url: str, processes: int, expiries: int) -> None:
    with StrictKiro() as fake:
        push(url, fake)
        with start_processes(url, fake, processes) as children:
            for number in range(1, expiries + 1):
                for child in children:
                    child.send(str(number * LIFE_S))
                wait_until(lambda: all(len(child.tokens) == number for child in children))  # noqa: B023
                assert {child.tokens[-1] for child in children} <= fake.access
                assert len({child.tokens[-1] for child in children}) == 1
                assert fake.counts[REFRESH] == number
        assert fake.reused == 0
        assert not is_lost(url, fake)


def test_processes_renew_once_at_each_expiry(postgres: Postgres) -> None:
    renew_at_each_expiry(postgres.empty_database(), 2, 3)


@pytest.mark.rest
def test_four_processes_renew_once_at_each_of_twenty_expiries(store_url: str) -> None:
    renew_at_each_expiry(store_url, 4, 20)


@pytest.mark.rest
def test_a_killed_process_loses_no_login_but_between_reply_and_commit(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = in_window = 0
    with StrictKiro() as fake:
        push(store_url, fake)
        child = Child(store_url, fake.root, "fork")
        try:
            for _ in range(KILLS):
                first, counted = len(child.lines), fake.counts[REFRESH]
                child.send("fork")
                wait_until(lambda: len(child.lines) > first)  # noqa: B023
                fake.pid = int(child.lines[first].removeprefix("begins "))
                wait_until(lambda: any("stored" in line for line in child.lines[first:]))  # noqa: B023
                time.sleep(random.uniform(0, 3 * LONGEST_S))
                os.kill(fake.pid, signal.SIGKILL)
                wait_until(lambda: not is_alive(fake.pid))
                wait_until(lambda: fake.connections == 0)
                was_lost = is_lost(store_url, fake)
                lines = child.lines[first:]
                assert not [line for line in lines if line.startswith("refused")]
                answered = fake.counts[REFRESH] - counted
                stored = sum(line.startswith("stored") for line in lines)
                assert answered - stored in (0, 1)
                in_window += answered - stored
                if was_lost:
                    assert answered == stored + 1, "lost though no reply was on its way to the store"
                    lost += 1
                    push(store_url, fake)
        finally:
            child.close()
        assert fake.reused == 0
    windows = [int(line.split()[1]) / 1000 for line in child.lines if line.startswith("stored")]
    kind, median, longest = store_url.partition(":")[0], statistics.median(windows), max(windows)
    with capsys.disabled():
        print(f"\n{kind}: {KILLS} kills in {len(windows)} renewals, {in_window} of them between the issuer's reply")
        print(f"and the end of our commit. {lost} logins were lost there, none elsewhere.")
        print(f"From the reply to the end of the commit: median {median:.1f} ms, longest {longest:.1f} ms.")

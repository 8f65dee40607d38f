"""Processes that renew one credential in the store at a Kiro that counts how often each refresh token is used."""

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dragoman.store import open_store
from dragoman.upstreams.credentials.stored import make_stored_credentials
from fakes.kiro import FakeKiro, json_answer
from fakes.threaded import ThreadedServer
from fakes.upstream import Answer, ReceivedRequest
from upstreams.credentials.stored_kit import ENVIRON, expired, look, put
from waiting import wait_until

PROGRAM = Path(__file__).with_name("renewing_process.py")
REFRESH = "/refreshToken"
LIFE_S = 7200
LONGEST_S = 0.02  # before the issuer uses a token


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

    def __init__(self, url: str, root: str, mode: str, enter: Sequence[str] = ()) -> None:
        """`enter`: the command that runs another one on its machine, if that is not this one."""
        environ = {**os.environ, **ENVIRON}
        words = [*enter, sys.executable, str(PROGRAM), url, root, mode]
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
def start_processes(url: str, fake: FakeKiro, places: Sequence[Sequence[str]]) -> Iterator[Sequence[Child]]:
    with ExitStack() as stack:
        children = []
        for enter in places:
            child = Child(url, fake.root, "obey", enter)
            stack.callback(child.close)
            children.append(child)
        for child in children:
            wait_until(lambda child=child: child.lines)  # type: ignore[misc]
        yield children


def renew_at_each_expiry(
    url: str, places: Sequence[Sequence[str]], expiries: int, host: str = ThreadedServer.host
) -> None:
    """Let one process at each place need the credential each time that it expires; it is renewed once."""
    kiro = StrictKiro()
    kiro.host = host
    with kiro as fake:
        push(url, fake)
        with start_processes(url, fake, places) as children:
            for number in range(1, expiries + 1):
                for child in children:
                    child.send(str(number * LIFE_S))
                wait_until(lambda: all(len(child.tokens) == number for child in children))  # noqa: B023
                assert {child.tokens[-1] for child in children} <= fake.access
                assert len({child.tokens[-1] for child in children}) == 1
                assert fake.counts[REFRESH] == number
        assert fake.reused == 0
        assert not is_lost(url, fake)

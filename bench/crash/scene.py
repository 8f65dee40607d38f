"""Kill a gateway while responses run, let another go on, and look at what became of each response."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.crash.clients import FINAL, Client
from bench.gateways import KEY, provider_section
from bench.ports import find_free_port
from bench.resume.upstream import Upstream
from bench.rig import wait_healthy
from bench.tree import Child
from dragoman.store import open_store
from dragoman.store.response_rows import Kept

PATIENCE_S = 120.0
PAUSES_S = (0.01, 0.05, 0.15)  # at most, between two events of a reply: most replies are under way at the kill
POLL_S = 0.1
FAR_FUTURE = 1 << 40
CONFIG = """
[server]
drain_s = 5
[retry]
attempts = 1
[responses]
background_lease_s = 4.0
max_background = {most}
[store]
url = "{url}"
"""


@dataclass(frozen=True)
class Plan:
    """How many responses of each kind there are, and how many gateways share the store."""

    count: int
    url: str
    gateways: int = 1


@dataclass
class Outcome:
    statuses: Counter[str] = field(default_factory=Counter)  # of background responses
    began: int = 0  # background responses whose upstream call had begun when the gateway was killed
    called_twice: int = 0
    without_end: int = 0
    streams: Counter[str] = field(default_factory=Counter)  # of stored streams
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


async def run(plan: Plan) -> Outcome:
    """Kill the first gateway in the middle, start it again if it was the only one, and wait for every response."""
    began = time.monotonic()
    upstream = Upstream(seed=1, pauses_s=PAUSES_S)
    server = await upstream.start()
    outcome = Outcome()
    clients = [Client(number, True, stream=number % 2 == 0) for number in range(plan.count)]
    clients += [Client(number, False, stream=True) for number in range(plan.count, 2 * plan.count)]
    with ExitStack() as stack:
        start = Starter(stack, plan, server.sockets[0].getsockname()[1]).start
        gateways = [await asyncio.to_thread(start) for _ in range(plan.gateways)]
        first, port = gateways[0]
        sending = [asyncio.create_task(client.send(port)) for client in clients]
        await _wait_until_under_way(plan, upstream, clients)
        outcome.began = sum(1 for number in range(plan.count) if upstream.calls[number])
        os.kill(first.pid, signal.SIGKILL)
        await asyncio.gather(*sending)
        _, port = gateways[1] if plan.gateways > 1 else await asyncio.to_thread(start)
        for client in clients:
            await _follow_to_its_end(client, port)
    server.close()
    for client in clients:
        _judge(client, upstream.calls[client.number], outcome)
    outcome.problems += await check_store(plan.url)
    outcome.seconds = time.monotonic() - began
    return outcome


async def _wait_until_under_way(plan: Plan, upstream: Upstream, clients: list[Client]) -> None:
    """Wait until every client knows its id, and as many background responses have begun as the first gateway runs."""
    until = time.monotonic() + PATIENCE_S
    while True:
        background = sum(1 for number in range(plan.count) if upstream.calls[number])
        known = sum(client.knows_id for client in clients)
        if background >= _most(plan) and known == len(clients):
            await asyncio.sleep(PAUSES_S[-1])
            return
        assert time.monotonic() < until, f"{background} background responses have begun, {known} ids are known"
        await asyncio.sleep(0.01)


async def _follow_to_its_end(client: Client, port: int) -> None:
    if not client.id:
        client.problem = client.problem or "the client did not learn the id of its response"
        return
    until = time.monotonic() + PATIENCE_S
    while True:
        status = await client.find(port)
        if status in FINAL or not client.background or time.monotonic() > until:
            break
        await asyncio.sleep(POLL_S)
    if status in FINAL:
        client.check_reply()
        if client.background and client.stream:
            await client.come_back(port)


def _judge(client: Client, calls: int, outcome: Outcome) -> None:
    status = "not stored" if client.final is None else str(client.final["status"])
    if client.background:
        outcome.statuses[status] += 1
        outcome.without_end += client.final is None
    else:
        outcome.streams[status] += 1
    outcome.called_twice += calls > 1
    if status == "completed" and calls != 1:
        client.problem = f"completed with {calls} upstream calls"
    if client.problem:
        outcome.problems.append(f"client {client.number}: {client.problem}")


def _most(plan: Plan) -> int:
    """Return how many background responses one gateway runs: some wait when it is killed."""
    return max(1, plan.count * 3 // 5)


class Starter:
    """Starts gateways on one store and one upstream."""

    def __init__(self, stack: ExitStack, plan: Plan, upstream: int) -> None:
        self._stack = stack
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-crash-")))
        self._config = self._directory / "dragoman.toml"
        provider = provider_section("chat", f"http://127.0.0.1:{upstream}")
        self._config.write_text(f"{CONFIG.format(most=_most(plan), url=plan.url)}\n{provider}\n")

    def start(self) -> tuple[Child, int]:
        """Start a gateway; return its process and its port."""
        port = find_free_port()
        command = [sys.executable, "-m", "dragoman", "serve", "--config", str(self._config), "--port", str(port)]
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        environ = kept | {"HOME": str(self._directory), "DRAGOMAN_API_KEY": KEY}
        child = Child(command, os.sched_getaffinity(0), self._directory / f"{port}.log", environ)
        self._stack.enter_context(child)
        wait_healthy(child, port, "/health", 60.0)
        return child, port


async def check_store(url: str) -> list[str]:
    """Return what is wrong with the rows, and remove them: nothing may be left then."""
    store = await open_store(url)
    problems = []
    try:
        if left := await store.runs.list_lost_runs(FAR_FUTURE, 1000):
            problems.append(f"{len(left)} runs are left")
        for row in await store.responses.list_responses(None, 10_000, 0):
            items = await store.responses.load_items(row.owner, row.digests)
            if missing := len(row.digests) - len(items):
                problems.append(f"{row.id} refers to {missing} items that are not stored")
            await store.responses.delete_response(row.owner, row.id)
        if (rest := await store.responses.measure()) != Kept(0, 0, 0, 0):
            problems.append(f"something is left without its response: {rest}")
    finally:
        await store.close()
    return problems


@contextmanager
def sqlite_store() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="dragoman-crash-store-") as directory:
        yield f"sqlite:///{directory}/dragoman.db"

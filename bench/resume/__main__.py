"""`python -m bench.resume`: clients of every protocol drop at a random byte and resume; prints what they ended with.

With `--replicas`, several gateways share a Valkey, and each client comes back to another one. That server is the one of
the tests: run it with `tests` in PYTHONPATH.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.gateways import KEY, provider_section
from bench.ports import find_free_port
from bench.resume.clients import WAYS, Client, Result, Way
from bench.resume.upstream import Upstream
from bench.rig import wait_healthy
from bench.tree import Child

AT_ONCE = {True: 200, False: 50}  # clients of one gateway; of several, which need the cores as well
CONFIG = """
[server]
keep_alive_s = 0.1
[retry]
attempts = 1
[responses]
park_s = 60
[store]
url = "sqlite:///{directory}/dragoman.db"
{shared}
"""
HEAD = "| client>upstream | clients | drops | resumed | retried with key | upstream calls | wrong |"


@dataclass
class Row:
    clients: int = 0
    drops: int = 0
    resumed: int = 0
    retried: int = 0
    calls: int = 0
    wrong: int = 0

    def add(self, result: Result, calls: int) -> None:
        self.clients += 1
        self.drops += result.drops
        self.resumed += result.resumed
        self.retried += result.retried
        self.calls += calls
        self.wrong += bool(result.problem) or calls != 1

    def format(self, name: str) -> str:
        figures = (self.clients, self.drops, self.resumed, self.retried, self.calls, self.wrong)
        return f"| {name} | {' | '.join(map(str, figures))} |"


async def run_clients(count: int, seed: int, replicas: int = 1) -> tuple[dict[str, Row], list[str]]:
    """Run so many clients of so many gateways; return a row for each way, and what went wrong."""
    upstream = Upstream(seed)
    server = await upstream.start()
    port = server.sockets[0].getsockname()[1]
    with start_replicas(port, replicas) as gateways:
        slots = asyncio.Semaphore(AT_ONCE[replicas == 1])

        async def run_one(number: int) -> tuple[Way, Result]:
            way = WAYS[number % len(WAYS)]
            async with slots:
                return way, await Client(gateways, way, number, Random(f"{seed}:{number}")).run()

        ended = await asyncio.gather(*map(run_one, range(count)))
    server.close()
    rows = {way.name: Row() for way in WAYS}
    for number, (way, result) in enumerate(ended):
        rows[way.name].add(result, upstream.calls[number])
    problems = [f"client {number}: {result.problem}" for number, (_, result) in enumerate(ended) if result.problem]
    return rows, problems


@contextmanager
def start_replicas(upstream: int, count: int) -> Iterator[list[int]]:
    """Run so many gateways in front of the fake upstream, which share a Valkey; yield their ports."""
    with ExitStack() as stack:
        shared = ""
        if count > 1:
            from valkey_server import ValkeyServer

            valkey = ValkeyServer()
            stack.callback(valkey.remove)
            shared = f'shared = "{valkey.url}"'
        yield [stack.enter_context(start_gateway(upstream, shared)) for _ in range(count)]


@contextmanager
def start_gateway(upstream: int, shared: str = "") -> Iterator[int]:
    """Run a gateway in front of the fake upstream; yield its port."""
    with tempfile.TemporaryDirectory(prefix="dragoman-resume-") as name:
        directory, port = Path(name), find_free_port()
        config = write_config(directory, upstream, shared)
        command = [sys.executable, "-m", "dragoman", "serve", "--config", str(config), "--port", str(port)]
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        environ = kept | {"HOME": str(directory), "DRAGOMAN_API_KEY": KEY}
        with Child(command, os.sched_getaffinity(0), directory / "output.log", environ) as child:
            wait_healthy(child, port, "/health", 30.0)
            yield port


def write_config(directory: Path, upstream: int, shared: str) -> Path:
    root = f"http://127.0.0.1:{upstream}"
    sections = [provider_section(protocol, root) for protocol in ("chat", "messages", "responses", "gemini")]
    config = directory / "dragoman.toml"
    config.write_text("\n\n".join([CONFIG.format(directory=directory, shared=shared), *sections]) + "\n")
    return config


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.resume", description=__doc__)
    parser.add_argument("--clients", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all chance (the time)")
    parser.add_argument("--replicas", type=int, default=1, help="how many gateways share a Valkey (1)")
    options = parser.parse_args()
    began = time.monotonic()
    rows, problems = asyncio.run(run_clients(options.clients, options.seed, options.replicas))
    print(
        f"{options.clients} clients, at most {AT_ONCE[options.replicas == 1]} at once, replicas: {options.replicas}, "
        f"seed {options.seed}, {time.monotonic() - began:.1f} s\n"
    )
    print(HEAD)
    print("|---" * (HEAD.count("|") - 1) + "|")
    total = Row()
    for name, row in rows.items():
        print(row.format(name))
        total = Row(*(getattr(total, key) + value for key, value in vars(row).items()))
    print(total.format("all"))
    for problem in problems[:20]:
        print(problem)
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

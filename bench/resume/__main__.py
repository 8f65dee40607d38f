"""`python -m bench.resume`: clients of every protocol drop at a random byte and resume; prints what they ended with."""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.gateways import KEY, provider_section
from bench.ports import find_free_port
from bench.resume.clients import WAYS, Client, Result, Way
from bench.resume.upstream import Upstream
from bench.rig import wait_healthy
from bench.tree import Child

AT_ONCE = 200
CONFIG = """
[server]
keep_alive_s = 0.1
[retry]
attempts = 1
[responses]
park_s = 60
[store]
url = "sqlite:///{directory}/dragoman.db"
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


async def run_clients(count: int, seed: int) -> tuple[dict[str, Row], list[str]]:
    """Run so many clients; return a row for each way, and what went wrong."""
    upstream = Upstream(seed)
    server = await upstream.start()
    port = server.sockets[0].getsockname()[1]
    with start_gateway(port) as gateway:
        slots = asyncio.Semaphore(AT_ONCE)

        async def run_one(number: int) -> tuple[Way, Result]:
            way = WAYS[number % len(WAYS)]
            async with slots:
                return way, await Client(gateway, way, number, Random(f"{seed}:{number}")).run()

        ended = await asyncio.gather(*map(run_one, range(count)))
    server.close()
    rows = {way.name: Row() for way in WAYS}
    for number, (way, result) in enumerate(ended):
        rows[way.name].add(result, upstream.calls[number])
    problems = [f"client {number}: {result.problem}" for number, (_, result) in enumerate(ended) if result.problem]
    return rows, problems


@contextmanager
def start_gateway(upstream: int) -> Iterator[int]:
    """Run a gateway in front of the fake upstream; yield its port."""
    with tempfile.TemporaryDirectory(prefix="dragoman-resume-") as name:
        directory, port = Path(name), find_free_port()
        config = write_config(directory, upstream)
        command = [sys.executable, "-m", "dragoman", "serve", "--config", str(config), "--port", str(port)]
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        environ = kept | {"HOME": str(directory), "DRAGOMAN_API_KEY": KEY}
        with Child(command, os.sched_getaffinity(0), directory / "output.log", environ) as child:
            wait_healthy(child, port, "/health", 30.0)
            yield port


def write_config(directory: Path, upstream: int) -> Path:
    root = f"http://127.0.0.1:{upstream}"
    sections = [provider_section(protocol, root) for protocol in ("chat", "messages", "responses", "gemini")]
    config = directory / "dragoman.toml"
    config.write_text("\n\n".join([CONFIG.format(directory=directory), *sections]) + "\n")
    return config


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.resume", description=__doc__)
    parser.add_argument("--clients", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all chance (the time)")
    options = parser.parse_args()
    began = time.monotonic()
    rows, problems = asyncio.run(run_clients(options.clients, options.seed))
    print(
        f"{options.clients} clients, at most {AT_ONCE} at once, seed {options.seed}, {time.monotonic() - began:.1f} s\n"
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

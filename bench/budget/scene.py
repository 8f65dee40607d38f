"""Gateways on one store that agents spend a budget through, and by how much they overspend it."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen

from msgspec import Struct

from bench.budget.agents import run_agents
from bench.budget.upstream import PRICE_LINES, BillingUpstream
from bench.ports import find_free_port

KEY = "dgm_fake-client-key-of-the-budget-bench"
NANO = 10**9
KINDS = {"messages": "anthropic", "chat": "openai-compatible", "responses": "openai-compatible"}
ALLOWED = {"messages": 1.0, "chat": 2.0, "responses": 2.0}  # dearest requests
START_S = 60.0
RELOAD_S = 3.0  # by then all workers have taken over an edited configuration


class Setting(Struct, frozen=True):
    """One row of the table."""

    store: str
    url: str  # of the store; {directory} and {run} are replaced
    gateways: int
    workers: int
    protocol: str
    dollars: float
    runs: int
    is_strict: bool = False
    agents: int = 50
    shared: str = ""  # lines of [store]: where the gateways share what PostgreSQL does not meter
    limits: str = ""  # further lines of [limits]


class Row(Struct):
    overshoots: list[float]  # in dearest requests
    used: float  # of the budget, the least of all runs
    requests: int
    seconds: float


def write_settings(directory: Path, setting: Setting, upstream: int, limit: float) -> None:
    """Write the configuration with this budget; gateways that run take it over."""
    budget = 'budget = "strict"\n' if setting.is_strict else ""
    written = directory / "new.toml"
    written.write_text(
        f'[store]\nurl = "{setting.url.format(directory=directory, run=directory.name[-8:].lower())}"\n'
        f"{setting.shared}[limits]\nusd_per_total = {limit:.9f}\n{budget}{setting.limits}{PRICE_LINES}"
        f"{provider_section(setting.protocol, f'http://127.0.0.1:{upstream}/v1')}"
    )
    written.replace(directory / "dragoman.toml")


def provider_section(protocol: str, endpoint: str) -> str:
    line = "" if protocol == "messages" else f'protocol = "{protocol}"\n'
    return f'[providers.up]\nkind = "{KINDS[protocol]}"\nendpoint = "{endpoint}"\napi_key = "sk-fake"\n{line}'


@contextmanager
def serve(directory: Path, setting: Setting) -> Iterator[list[int]]:
    """Run the gateways of a setting, and yield their ports."""
    ports = [find_free_port() for _ in range(setting.gateways)]
    environ = os.environ | {"DRAGOMAN_API_KEY": KEY, "XDG_DATA_HOME": str(directory)}
    with ExitStack() as stack:
        for port in ports:
            command = [sys.executable, "-m", "dragoman", "serve", "--config", str(directory / "dragoman.toml")]
            more = ["--port", str(port), "--workers", str(setting.workers)]
            process = Popen([*command, *more], cwd=directory, env=environ, stdout=DEVNULL, stderr=DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield ports


async def wait_until_ready(ports: list[int]) -> None:
    until = time.monotonic() + START_S
    for port in ports:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.1)


async def measure(setting: Setting) -> Row:
    """Run all agents again and again; each run adds its budget to what was spent before."""
    row, began = Row([], 1.0, 0, 0.0), time.monotonic()
    upstream = BillingUpstream(seed=setting.runs)
    await upstream.start()
    bill = upstream.bill
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_settings(directory, setting, upstream.port, setting.dollars)
        with serve(directory, setting) as ports:
            await wait_until_ready(ports)
            for seed in range(setting.runs):
                before, bill.dearest = bill.total, 1
                limit = before + setting.dollars * NANO
                if seed:
                    write_settings(directory, setting, upstream.port, limit / NANO)
                    await asyncio.sleep(RELOAD_S)
                await run_agents(ports, KEY, setting.protocol, setting.agents, seed)
                row.overshoots.append(max(0.0, (bill.total - limit) / bill.dearest))
                row.used = min(row.used, (bill.total - before) / (limit - before))
    await upstream.stop()
    row.requests, row.seconds = bill.requests, time.monotonic() - began
    return row

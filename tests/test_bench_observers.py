"""The gateways that `bench.observers` compares differ in their observers, and in nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from asking import ask
from gateway import KEY
from scraping import scrape, total
from shell import Served, Shell
from waiting import wait_until

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("names", "logged", "counted"), [("none", 0, 0), ("log", 1, 0), ("log,metrics,usage", 1, 1)])
@pytest.mark.rest
def test_a_gateway_runs_with_some_of_its_observers(names: str, logged: int, counted: int, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.partly", names, "serve", "--port", "0"],
        cwd=ROOT,
        env={**shell.environ, "DRAGOMAN_API_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with Served(shell, child) as served:
        assert b"Hi" in ask(served, "chat", "echo", "Hi").body
        wait_until(lambda: total(scrape(served.url), "dragoman_requests_total") == counted)
        served.end()
    assert served.err.count("dragoman.requests: ") == logged

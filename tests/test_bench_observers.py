"""The gateways that `bench.observers` compares differ in their observers, and in nothing else."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import msgspec
import pytest

from scraping import scrape, total

ROOT = Path(__file__).parents[1]
KEY = "sk-fake-client-key-for-the-benchmark-only"
PATIENCE_S = 30.0


@pytest.mark.parametrize(("names", "logged", "counted"), [("none", 0, 0), ("log", 1, 0), ("log,metrics,usage", 1, 1)])
def test_a_gateway_runs_with_some_of_its_observers(names: str, logged: int, counted: int, tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path), "DRAGOMAN_API_KEY": KEY, "DRAGOMAN_LOCAL_PORTS": "", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "bench.partly", names, "serve", "--port", "0"]
    output = tmp_path / "output.log"
    with output.open("wb") as log:
        child = subprocess.Popen(command, cwd=ROOT, env={"PATH": os.environ["PATH"], **own}, stdout=log, stderr=log)
    try:
        url = address(output, child)
        ask(url)
        time.sleep(0.1)
        until = time.monotonic() + PATIENCE_S
        while total(scrape(url), "dragoman_requests_total") != counted:
            assert time.monotonic() < until, "waited in vain"
    finally:
        child.terminate()
        child.wait(PATIENCE_S)
    assert output.read_text().count("dragoman.requests: ") == logged


def address(output: Path, child: "subprocess.Popen[bytes]") -> str:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and child.poll() is None:
        found = re.search(r"listens on (http://\S+)", output.read_text())
        if found is not None:
            return found[1]
        time.sleep(0.02)
    raise AssertionError(output.read_text())


def ask(url: str) -> None:
    body = msgspec.json.encode({"model": "echo", "messages": [{"role": "user", "content": "Hi"}]})
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert b"Hi" in answer.read()

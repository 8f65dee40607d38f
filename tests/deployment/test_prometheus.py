"""A real Prometheus scrapes running gateways with our configuration, and every query of our board has a result."""

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.account_rig import run_codex
from e2e.test_scrape import dashboard
from fakes import codex
from rig import Rig
from scraping import Scrape
from waiting import wait_until

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "contrib" / "prometheus" / "prometheus.yaml"
TARGETS = '["gateway-1:8484", "gateway-2:8484"]'
START_S, SCRAPES_S = 30.0, 30.0
VARIABLES = {"$job": ".+", "$model": ".*", "$__rate_interval": "1m"}
ALLOWANCE = (("x-codex-primary-used-percent", "37.5"), ("x-codex-primary-window-minutes", "300"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[object]:
        """Return the series that a query finds."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=20) as answer:
            found: list[object] = json.load(answer)["data"]["result"]
        return found

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False


@contextmanager
def start_prometheus(directory: Path, targets: list[str]) -> Iterator[Prometheus]:
    """Start Prometheus with our configuration, but other addresses and a shorter interval."""
    text = CONFIG.read_text()
    assert TARGETS in text
    assert "scrape_interval: 15s" in text
    config = directory / "prometheus.yaml"
    config.write_text(text.replace(TARGETS, json.dumps(targets)).replace("interval: 15s", "interval: 1s"))
    port = free_port()
    paths = (f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}")
    command = ["prometheus", *paths, f"--web.listen-address=127.0.0.1:{port}"]
    with (directory / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        prometheus = Prometheus(port)
        try:
            wait_until(prometheus.is_ready, START_S)
            yield prometheus
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def prometheus(rig: Rig, after_a_search: Scrape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus, after it has scraped two gateways several times; one of them has an account with an allowance."""
    directory = tmp_path_factory.mktemp("prometheus")
    with run_codex(directory) as account:
        account.fake.play(codex.reply("Hello", headers=ALLOWANCE))
        account.sdk.openai.responses.create(model="codex/gpt-5.5", input="Hi")
        targets = [f"127.0.0.1:{gateway.port}" for gateway in (rig.gateway, account.gateway)]
        with start_prometheus(directory, targets) as started:
            scraped_often = "min(count_over_time(up[5m])) >= 4 and count(up == 1) == 2"
            wait_until(lambda: bool(started.query(scraped_often)), SCRAPES_S)
            yield started


def test_promtool_accepts_the_configuration() -> None:
    done = subprocess.run(["promtool", "check", "config", str(CONFIG)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_metrics(rig: Rig, after_a_search: Scrape) -> None:
    with urllib.request.urlopen(f"{rig.gateway.url}/metrics", timeout=20) as answer:
        text = answer.read()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_every_query_of_the_board_has_a_result(prometheus: Prometheus) -> None:
    expressions = [target.expr for panel in dashboard().panels for target in panel.targets]
    assert len(expressions) > 50
    without = []
    for expression in expressions:
        filled = expression
        for name, value in VARIABLES.items():
            filled = filled.replace(name, value)
        if not prometheus.query(filled):
            without.append(filled)
    assert without == []


def test_every_variable_of_the_board_has_values(prometheus: Prometheus) -> None:
    for name in ("dragoman_build_info", "gen_ai_server_request_duration_seconds_count"):
        assert prometheus.query(name)

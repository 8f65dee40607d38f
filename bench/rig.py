"""Run the named gateways on one core and the fake upstream on another, until the context is left."""

import http.client
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cases import Case
from bench.gateways import GATEWAYS, Gateway, Site, headers
from bench.load import Shot
from bench.ports import find_free_port
from bench.results import Start
from bench.tools import ROOT
from bench.tree import GATEWAY_CORES, LOAD_CORES, Child

DIRECT = "direct"
POLL_S = 0.005
IDLE_S = 0.5  # from the first answer until the memory of an idle gateway is read


class NotStarted(Exception):
    """A gateway did not become healthy."""


@dataclass(frozen=True)
class Running:
    """A gateway that answers; `start_s` is how long it took to get there, `start_cpu_s` the CPU time of that."""

    name: str
    port: int
    child: Child
    start_s: float
    start_cpu_s: float

    def describe_start(self) -> Start:
        return Start(self.start_s, self.start_cpu_s, self.child.rss_mb())

    def shot(self, case: Case) -> Shot:
        return Shot(self.port, case.path, headers(case.client), case.body)


class Rig:
    """Everything that runs; leaving the context stops all of it, whatever happened."""

    def __enter__(self) -> "Rig":
        self.gateways = dict(GATEWAYS)
        self.running: dict[str, Running] = {}
        self._launched = 0
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(TemporaryDirectory(prefix="dragoman-bench-")))
            self._start_upstream(stack)
            self._stack = stack.pop_all()
        return self

    def _start_upstream(self, stack: ExitStack) -> None:
        port = find_free_port()
        command = [sys.executable, "-m", "bench.upstream", "--port", str(port)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = stack.enter_context(Child(command, LOAD_CORES, self.directory / "upstream.log", environ))
        took = wait_healthy(child, port, "/v1/models", 20.0)
        self.running[DIRECT] = Running(DIRECT, port, child, took, child.cpu_s())

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str) -> Running:
        """Keeps the gateway running until the rig is left."""
        child, running = self._launch(self.gateways[name])
        self._stack.enter_context(child)
        self.running[name] = running
        return running

    def try_start(self, gateway: Gateway) -> Start:
        """Start, wait until healthy, and stop."""
        child, running = self._launch(gateway)
        with child:
            time.sleep(IDLE_S)
            return running.describe_start()

    def _launch(self, gateway: Gateway) -> tuple[Child, Running]:
        self._launched += 1
        directory = self.directory / f"{gateway.name}-{self._launched}"
        directory.mkdir()
        site = Site(find_free_port(), self.running[DIRECT].port, directory)
        command = gateway.prepare(site)
        child = Child(command, GATEWAY_CORES, directory / "output.log", gateway.environ(site))
        try:
            took = wait_healthy(child, site.port, gateway.health, gateway.patience_s)
        except NotStarted:
            with child:
                raise
        return child, Running(gateway.name, site.port, child, took, child.cpu_s())


def wait_healthy(child: Child, port: int, path: str, patience_s: float) -> float:
    """Seconds until the path first answers 200."""
    began = time.perf_counter()
    while time.perf_counter() - began < patience_s:
        if child.ended:
            raise NotStarted(child.last_words())
        if answers(port, path):
            return time.perf_counter() - began
        time.sleep(POLL_S)
    raise NotStarted(f"not healthy after {patience_s:.0f} s: {child.last_words()}")


def answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def ask_once(shot: Shot, method: str = "POST") -> tuple[int, bytes]:
    """One request with its whole answer."""
    connection = http.client.HTTPConnection("127.0.0.1", shot.port, timeout=30)
    try:
        connection.request(method, shot.path, shot.body, shot.headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as problem:
        return 0, str(problem).encode()
    finally:
        connection.close()

"""One gateway in front of one upstream that plays a script, and the ways to run a client against it."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from fakes.agent import Agent, ChangeAnswer, Use
from fakes.agents import chat, gemini, kiro, messages, responses
from fakes.doorway import Doorway
from fakes.kiro import SEED, FakeKiro
from fakes.upstream import FakeUpstream
from gateway import KEY, Running, provider_section, running

SERVER_PROTOCOLS: dict[str, ModuleType] = {
    "chat": chat,
    "responses": responses,
    "messages": messages,
    "kiro": kiro,
    "gemini": gemini,
}
UPSTREAMS = ("chat", "responses", "messages", "kiro")  # on which every client is tested, also with faults
ALL_UPSTREAMS = (*UPSTREAMS, "gemini")  # on which every client uses its tools
EVERY_MODEL = '\n[[models]]\nname = "*"\nto = ["up/*"]\n'
PATIENCE_S = 180.0
NOTHING: Mapping[str, str] = {}


def on_every_upstream(first: str, upstreams: Sequence[str] = UPSTREAMS) -> pytest.MarkDecorator:
    """Run a test on this upstream in `make test`, and on the others in `make test-rest`."""
    others = [pytest.param(upstream, marks=pytest.mark.rest) for upstream in upstreams if upstream != first]
    return pytest.mark.parametrize("upstream", [first, *others])


@dataclass(frozen=True)
class Ran:
    """A client that ended by itself."""

    code: int
    out: str
    err: str
    seconds: float

    def __str__(self) -> str:
        return f"exit code {self.code} after {self.seconds:.1f} s\n--- out\n{self.out}\n--- err\n{self.err}"


@dataclass
class Rig:
    gateway: Running
    upstream: FakeUpstream
    agent: Agent
    home: Path
    work: Path
    door: Doorway
    ran: list[Ran] = field(default_factory=list)  # the clients that have ended by themselves

    @property
    def url(self) -> str:
        return self.door.url

    def run(self, *command: str | Path, patience_s: float = PATIENCE_S, env: Mapping[str, str] = NOTHING) -> Ran:
        """Runs a client to its end, in a home and a directory of its own; one that hangs is a failure."""
        begun = time.monotonic()
        client = subprocess.Popen(
            [str(word) for word in command],
            cwd=self.work,
            env={**self._environment(), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = client.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(client.pid, signal.SIGKILL)
            out, err = client.communicate()
            raise AssertionError(f"still running after {patience_s} s\n--- out\n{out}\n--- err\n{err}") from None
        self.ran.append(Ran(client.returncode, out, err, time.monotonic() - begun))
        return self.ran[-1]

    def _environment(self) -> dict[str, str]:
        """Nothing of ours but the path: a client must not find the accounts or proxies of who runs the tests."""
        basic = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "NO_COLOR": "1", "CI": "1"}
        return {**basic, "GATEWAY_URL": self.url, "GATEWAY_KEY": KEY}


@contextmanager
def run_rig(
    directory: Path, upstream: str, *script: Use, change: ChangeAnswer | None = None, settings: str = ""
) -> Iterator[Rig]:
    home, work, state = (directory / name for name in ("home", "work", "gateway"))
    for path in (home, work, state):
        path.mkdir()
    agent = Agent(SERVER_PROTOCOLS[upstream], script, change)
    with (
        _fake(upstream, agent) as fake,
        running(settings + _provider_section(upstream, fake) + EVERY_MODEL, state, stored=["another"]) as gateway,
        Doorway(gateway.port) as door,
    ):
        yield Rig(gateway, fake, agent, home, work, door)


def _fake(upstream: str, agent: Agent) -> FakeUpstream:
    if upstream == "kiro":
        return kiro.KiroAgent(agent)
    return FakeUpstream(choose=gemini.from_path(agent) if upstream == "gemini" else agent)


def _provider_section(upstream: str, fake: FakeUpstream) -> str:
    return fake.section(SEED, "up") if isinstance(fake, FakeKiro) else provider_section(upstream, fake.url)

"""What the client tests share: installed clients, and a page of what they prove."""

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clients import install, proof, replay
from clients.captured import ENDPOINTS
from clients.rig import Rig, run_rig
from fakes.agent import ChangeAnswer, Use
from fakes.upstream import ReceivedRequest

SMOKE, REST = (Path(__file__).parent / name for name in ("smoke", "all"))
WRITE = "DRAGOMAN_CLIENTS_PAGE"  # set, a whole run writes the page instead of comparing with it
PROVEN: proof.Proven = defaultdict(set)
REACTIONS: proof.Reactions = {}
CLAIMED = proof.read(proof.PAGE.read_text() if proof.PAGE.exists() else "")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the test that judges the page which this run is about to write."""
    return True if os.environ.get(WRITE) and collection_path == SMOKE / "test_clients_page.py" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the other clients to `make test-rest`."""
    for item in items:
        if item.path.is_relative_to(REST):
            item.add_marker(pytest.mark.rest)


def _find_named_paths(config: pytest.Config) -> list[Path]:
    here = config.invocation_params.dir
    return [(here / str(word).partition("::")[0]).resolve() for word in config.invocation_params.args]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After a complete and successful run, write the page, or compare it with the proofs."""
    is_partial = any(session.config.getoption(name) for name in ("keyword", "markexpr", "collectonly"))
    whole = {SMOKE, REST} <= set(_find_named_paths(session.config)) and not is_partial
    if not whole or exitstatus != pytest.ExitCode.OK:
        return
    if os.environ.get(WRITE):
        proof.PAGE.write_text(proof.page(PROVEN, REACTIONS))
    elif proof.page(PROVEN, REACTIONS) != proof.PAGE.read_text():
        raise pytest.UsageError("docs/clients.md is stale: run `make clients-page`")


@pytest.fixture
def proves() -> proof.Proves:
    """Record what a test has proved. A proof that is missing on the page makes the page stale."""

    def prove(client: str, upstream: str, *capabilities: str) -> None:
        PROVEN[client, upstream] |= set(capabilities)
        if not os.environ.get(WRITE):
            missing = set(capabilities) - CLAIMED[client, upstream]
            assert not missing, f"docs/clients.md does not know {missing}: run `make clients-page`"

    return prove


@pytest.fixture
def reactions() -> proof.Reactions:
    """Collect what clients did after an error, for docs/clients.md."""
    return REACTIONS


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return what prints a line at once, past the capture of output, also from one of several processes."""
    plugins = request.config.pluginmanager
    reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")

    def write(line: str) -> None:
        if reporter is not None:
            reporter.write_line(f"\n[clients] {line}")
        elif capture is not None:
            with capture.global_and_fixture_disabled():
                print(f"\n[clients] {line}", file=sys.stderr, flush=True)

    return write


@pytest.fixture(scope="session")
def client(report: Callable[[str], None]) -> Callable[[str], Path]:
    """Return the directory of a client, which is installed at its first use."""
    return lambda name: install.ensure_installed(name, report)


@pytest.fixture(scope="session")
def node(report: Callable[[str], None]) -> Path:
    return install.node(report)


Rigging = Callable[..., Rig]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rigging]:
    """A gateway before an upstream of the named protocol that plays the given script.

    At the end, what the upstream was sent is built for every other upstream: each run is a capture of its own.
    """
    made: list[Rig] = []
    with ExitStack() as stack:

        def make(upstream: str, *script: Use, change: ChangeAnswer | None = None, settings: str = "") -> Rig:
            made.append(stack.enter_context(run_rig(tmp_path, upstream, *script, change=change, settings=settings)))
            return made[-1]

        yield make
    for body, protocol in {
        (upstream_request.body, _protocol(upstream_request))
        for here in made
        for upstream_request in here.upstream.calls
    }:
        for upstream in replay.UPSTREAMS if protocol else ():
            replay.check(body, protocol, upstream)


def _protocol(upstream_request: ReceivedRequest) -> str:
    path = upstream_request.path.partition("?")[0]
    return next((protocol for end, protocol in ENDPOINTS.items() if path.endswith(end)), "")

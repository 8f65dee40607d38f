"""What the client tests share: installed clients, and the rule that the smoke set runs unless more is named."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from clients import install
from clients.rig import Rig, rigged
from fakes.agent import Amended, Use

REST = Path(__file__).parent / "all"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest` alone runs the smoke set; `pytest tests/clients/all` the other clients."""
    if not collection_path.is_relative_to(REST):
        return None
    here = config.invocation_params.dir
    named = [(here / str(word).partition("::")[0]).resolve() for word in config.invocation_params.args]
    return None if any(word.is_relative_to(REST) for word in named) else True


@pytest.fixture(scope="session")
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    return lambda line: reporter.write_line(f"\n[clients] {line}") if reporter else None


@pytest.fixture(scope="session")
def client(tell: Callable[[str], None]) -> Callable[[str], Path]:
    """The directory of a client, installed when first asked for."""
    return lambda name: install.installed(name, tell)


@pytest.fixture(scope="session")
def node(tell: Callable[[str], None]) -> Path:
    return install.node(tell)


Rigging = Callable[..., Rig]


@pytest.fixture
def rig(tmp_path: Path) -> Rigging:  # type: ignore[misc]
    """A gateway before an upstream of the named protocol that plays the given script."""
    with ExitStack() as stack:

        def make(upstream: str, *script: Use, amend: Amended | None = None, settings: str = "") -> Rig:
            return stack.enter_context(rigged(tmp_path, upstream, *script, amend=amend, settings=settings))

        yield make

"""A real model behind the gateway, for tests that run only when they are named: its server takes minutes to build."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway import KEY, Running, running
from model import install
from model.sdk_requests import Sdks
from model.server import serving

HERE = Path(__file__).parent
SETTINGS = """[server]
first_token_timeout_s = 120

[retry]
attempts = 2
base_s = 0.1

[providers.real]
kind = "openai-compatible"
endpoint = "{url}"
quirks = "llama-cpp-python"

[providers.plain]
kind = "openai-compatible"
endpoint = "{url}"

[[models]]
name = "*"
to = ["real/smollm2"]
"""


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """`pytest` alone passes this folder over; `pytest tests/model` runs it."""
    here = config.invocation_params.dir
    named = [(here / str(word).partition("::")[0]).resolve() for word in config.invocation_params.args]
    return None if any(word.is_relative_to(HERE) for word in named) else True


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Writes a line to the terminal at once, whatever pytest captures."""
    plugins = request.config.pluginmanager
    reporter, captured = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    if reporter is None or captured is None:
        return lambda line: None

    def write(line: object) -> None:
        with captured.global_and_fixture_disabled():
            reporter.write_line(f"[model] {line}")

    return write


@pytest.fixture(scope="session")
def upstream(report: Callable[[object], None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the model's server."""
    with serving(install.install(report), tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="session")
def gateway(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(SETTINGS.format(url=upstream), tmp_path_factory.mktemp("gateway")) as started:
        yield started


@pytest.fixture(scope="session")
def sdks(gateway: Running) -> Sdks:
    return Sdks.at(gateway.url, KEY)


@pytest.fixture
def show(request: pytest.FixtureRequest, report: Callable[[object], None]) -> Callable[[object], None]:
    """Print the model's reply: this is the only suite where it is not known beforehand."""
    return lambda value: report(f"{request.node.name}: {value}")

"""What tests of several folders share: a real PostgreSQL, started by the first that needs one; patience."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from postgres import Postgres

# How long an example takes depends on who else uses the machine. Who decides about a change tries the same ones each
# time; who works on it tries new ones.
SAME_EXAMPLES = "DRAGOMAN_SAME_EXAMPLES" in os.environ
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=SAME_EXAMPLES
)
settings.load_profile("patient")


def pytest_configure() -> None:
    """Who runs the tests in the background ignores SIGINT, and so would every process that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Ten thousand tests live as long as the run: to look through them for garbage takes longer than many a test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres() -> "Iterator[Postgres]":
    from postgres import Postgres

    server = Postgres()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store, once of each kind."""
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        return server.database()
    return f"sqlite:///{request.getfixturevalue('tmp_path')}/dragoman.db"

"""What tests of several folders share: settings of the run, tests that run alone, a real PostgreSQL server.

No test opens what lies beside the checkout or in the developer's home (`outside_paths.py`).
"""

import asyncio
import fcntl
import gc
import inspect
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from outside_paths import OutsidePathGuard, make_rules

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

    from postgres import Postgres
    from valkey_server import ValkeyServer

# How long an example takes depends on what else the machine does, so there is no deadline. The run that decides about
# a change tries the same examples each time; other runs try new ones.
SAME_EXAMPLES = "DRAGOMAN_SAME_EXAMPLES" in os.environ
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=SAME_EXAMPLES
)
settings.load_profile("patient")

TESTS = Path(__file__).parent
REST = pytest.StashKey[int]()  # number of cases that this run leaves to `make test-rest`
GUARD = OutsidePathGuard(make_rules())
GUARD.install()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--in-process", action="store_true", help="fail a test that uses a network or starts a process")


def refuse_to_leave_the_process(event: str, _: tuple[object, ...]) -> None:
    if event in ("socket.bind", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.fork"):
        raise AssertionError(f"{event}: this test belongs to make test, not to make test-fast")


def pytest_configure(config: pytest.Config) -> None:
    """Handle SIGINT also where the shell that started the run ignores it: started processes would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    GUARD.rules = make_rules(config.getoption("basetemp"))
    if "PYTEST_XDIST_WORKER" in os.environ and config.args == config.getini("testpaths"):
        config.args = rotate_folders(
            int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        )


def rotate_folders(number: int, processes: int) -> list[str]:
    """Return what `tests` contains, for each process from another place on.

    Pytest rewrites the assertions of every test file, which takes longer than the rest of the collection. Processes
    that begin at different files read what the others have written for the files that follow.
    """
    files = sorted(TESTS.rglob("test_*.py"))
    entries = list(dict.fromkeys(TESTS / file.relative_to(TESTS).parts[0] for file in files))
    first = entries.index(TESTS / files[len(files) * number // processes].relative_to(TESTS).parts[0])
    return [str(entry) for entry in entries[first:] + entries[:first]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests the same order in every process, wherever its collection began."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: str(item.path))


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what `make test` leaves to `make test-rest`; each process collects the same."""
    item = items[0]
    item.config.stash[REST] = sum(found.get_closest_marker("rest") is not None for found in items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        session.config.workeroutput["rest"] = session.config.stash.get(REST, 0)  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: "WorkerController") -> None:
    node.config.stash[REST] = getattr(node, "workeroutput", {}).get("rest", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(REST, 0):
        terminalreporter.write_line(f"{left} cases are left to make test-rest.")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude the collected tests from garbage collection: looking through them takes longer than many a test."""
    gc.collect()
    gc.freeze()
    if session.config.getoption("--in-process"):
        sys.addaudithook(refuse_to_leave_the_process)  # pytest itself has started what it needs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test marked `alone` while no other process of the same run (`pytest -n`) runs a test."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    of_this_run = Path(item.config.getoption("basetemp")).parent
    with take_turn(of_this_run / "turn", is_alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop of its own, for at most 40 s; an exhaustive one for longer."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    fixtures = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    limit_s = 40 if pyfuncitem.get_closest_marker("rest") is None else 180
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**fixtures), limit_s))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that caught the error of a path that leads out of the repository."""
    result = yield
    opened = GUARD.take_opened()
    assert not opened, f"{item.nodeid} opened {', '.join(opened)}, outside of the repository"
    return result


def pytest_runtest_teardown() -> None:
    """Forget the paths for which the test, or what was set up for it, has failed already."""
    GUARD.take_opened()


@contextmanager
def take_turn(lock: Path, *, is_alone: bool) -> Iterator[None]:
    """Hold the lock, shared or for this process alone.

    Every process passes the gate first, so that one that waits to be alone is not overtaken for ever.
    """
    with lock.open("a") as turn:
        with lock.with_suffix(".gate").open("a") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(turn, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield


@pytest.fixture(scope="session")
def postgres() -> "Iterator[Postgres]":
    from postgres import Postgres

    server = Postgres()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def valkey_process() -> "Iterator[ValkeyServer]":
    from valkey_server import ValkeyServer

    server = ValkeyServer()
    yield server
    server.remove()


@pytest.fixture
def valkey(valkey_process: "ValkeyServer") -> "ValkeyServer":
    """A server that knows nothing."""
    valkey_process.restore()
    return valkey_process


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store, once of each kind."""
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        return server.empty_database()
    return f"sqlite:///{request.getfixturevalue('tmp_path')}/dragoman.db"

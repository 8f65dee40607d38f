"""What the end-to-end tests share."""

from collections.abc import Generator, Iterator

import pytest

from e2e.proof import record
from e2e.search_scene import SearchScene, run_scene
from rig import Rig, run_rig


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record what each test of the matrix proved, for docs/compatibility.md."""
    report = yield
    if isinstance(item, pytest.Function) and item.module.__name__ == "test_matrix" and report.when != "teardown":
        record(item.callspec.params, report.passed)
    return report


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway")) as shared:
        yield shared


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with run_scene(tmp_path_factory.mktemp("tools")) as shared:
        yield shared

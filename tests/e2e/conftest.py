"""What the end-to-end tests share."""

from collections.abc import Iterator

import pytest

from e2e.search_scene import SearchScene, run_scene
from rig import ALL_UPSTREAMS, Rig, run_rig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway")) as shared:
        yield shared


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A gateway with every upstream, Kiro too."""
    with run_rig(tmp_path_factory.mktemp("matrix"), upstreams=ALL_UPSTREAMS) as shared:
        yield shared


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with run_scene(tmp_path_factory.mktemp("tools")) as shared:
        yield shared

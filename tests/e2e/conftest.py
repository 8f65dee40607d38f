"""What the end-to-end tests share."""

from collections.abc import Iterator

import pytest
from rig import Rig, rigged


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(tmp_path_factory.mktemp("gateway")) as shared:
        yield shared

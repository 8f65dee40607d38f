"""What the tests from outside share."""

from collections.abc import Iterator

import pytest

from rig import PROTOCOLS, Rig, run_rig


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), upstreams=PROTOCOLS) as shared:
        yield shared

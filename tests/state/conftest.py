"""The gateway of most tests of a file here."""

from collections.abc import Iterator

import pytest

from state.state_rig import StateRig, state_rigged


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateRig]:
    with state_rigged(tmp_path_factory.mktemp("state")) as shared:
        yield shared

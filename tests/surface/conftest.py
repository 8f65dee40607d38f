"""What the tests from outside share."""

from collections.abc import Iterator

import pytest

from surface.outside import Outside, outside


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with outside(tmp_path_factory.mktemp("gateway")) as shared:
        yield shared

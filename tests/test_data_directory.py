"""Where the gateway keeps its data: $DRAGOMAN_DATA, $XDG_DATA_HOME, or below the home directory."""

from pathlib import Path

import pytest

from dragoman.config.discovery import codex_credential_paths, data_directory
from dragoman.config.load import ConfigSource
from shell import Shell

HOME = Path("/home/someone")


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({}, "/home/someone/.local/share/dragoman"),
        ({"XDG_DATA_HOME": "/data/shared"}, "/data/shared/dragoman"),
        ({"DRAGOMAN_DATA": "/data"}, "/data"),
        ({"DRAGOMAN_DATA": "/data", "XDG_DATA_HOME": "/data/shared"}, "/data"),
        ({"DRAGOMAN_DATA": "", "XDG_DATA_HOME": ""}, "/home/someone/.local/share/dragoman"),
    ],
)
def test_store_captures_and_credentials_are_in_the_data_directory(
    environ: dict[str, str], directory: str, tmp_path: Path
) -> None:
    config = ConfigSource(None, environ, tmp_path, HOME).read()
    assert config.store.url == f"sqlite:///{directory}/dragoman.db"
    assert config.debug.directory == Path(directory) / "captures"
    assert data_directory(environ, HOME) == Path(directory)
    assert codex_credential_paths(environ, HOME)[0] == Path(directory) / "codex.json"


def test_the_file_wins_over_the_variable(tmp_path: Path) -> None:
    text = '[store]\nurl = "sqlite:///~/mine.db"\n[debug]\ndirectory = "~/caught"\n'
    (tmp_path / "dragoman.toml").write_text(text)
    config = ConfigSource(None, {"DRAGOMAN_DATA": "/data"}, tmp_path, HOME).read()
    assert (config.store.url, config.debug.directory) == ("sqlite:////home/someone/mine.db", HOME / "caught")


def test_a_store_from_before_the_variable_counted_is_kept(tmp_path: Path) -> None:
    earlier = tmp_path / ".local/share/dragoman/dragoman.db"
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    shared = {"XDG_DATA_HOME": str(tmp_path / "shared")}
    assert ConfigSource(None, shared, tmp_path, tmp_path).read().store.url == f"sqlite:///{earlier}"
    assert (
        ConfigSource(None, {"DRAGOMAN_DATA": "/data"}, tmp_path, tmp_path).read().store.url
        == "sqlite:////data/dragoman.db"
    )
    (tmp_path / "shared/dragoman").mkdir(parents=True)
    (tmp_path / "shared/dragoman/dragoman.db").touch()
    assert (
        ConfigSource(None, shared, tmp_path, tmp_path).read().store.url
        == f"sqlite:///{tmp_path}/shared/dragoman/dragoman.db"
    )


def test_nothing_is_written_outside_the_data_directory(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shell = Shell(home)
    created = shell.run("keys", "create", "laptop", DRAGOMAN_DATA=str(tmp_path / "data"))
    assert created.code == 0, created.err
    assert (tmp_path / "data" / "dragoman.db").is_file()
    assert list(home.iterdir()) == []

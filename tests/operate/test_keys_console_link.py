"""A link to the console of the gateway that runs where the configuration says."""

import asyncio
from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate import AdminError
from dragoman.operate.keys import make_console_link
from gateway import running


def configure(directory: Path, toml: str, port: int) -> Config:
    file = directory / "dragoman.toml"
    file.write_text(f'{toml}[store]\nurl = "sqlite:///{directory}/store.db"\n')
    return ConfigSource(str(file), {}, directory, directory).read({"server.port": port})


def test_the_reason_is_named_if_there_is_no_console_or_no_owner(tmp_path: Path) -> None:
    with running("", tmp_path, stored=["someone"]) as gateway:
        with pytest.raises(AdminError, match="DRAGOMAN_CONSOLE"):
            asyncio.run(
                make_console_link(configure(tmp_path, "", gateway.port), gateway.url, {"DRAGOMAN_CONSOLE": "0"})
            )
        with pytest.raises(AdminError, match="needs the owner's key"):
            asyncio.run(make_console_link(configure(tmp_path, "", gateway.port), gateway.url, {}))

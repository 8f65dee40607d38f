"""A configuration that an editor saves in place is never read while it is empty."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from dragoman.app import App, AppSettings, Listening, ProcessParts, run
from dragoman.config.load import ConfigSource, Stamp
from dragoman.config.secret import Secret
from dragoman.operate.configuration import settled_file
from dragoman.tenancy.keys import Keyring
from waiting import wait_until_async

ECHO = '[providers.echo]\nkind = "echo"\n'


def make_config(name: str) -> str:
    return f'{ECHO}[[models]]\nname = "{name}"\nto = ["echo/echo"]\n'


def test_a_file_that_is_empty_while_it_is_saved_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settled_file, "SETTLE_S", 0.01)
    monkeypatch.setattr(settled_file, "EMPTY_S", 3600.0)
    file = tmp_path / "dragoman.toml"
    file.write_text(make_config("parrot"))
    source = ConfigSource(None, {}, tmp_path, tmp_path)
    read, first = partial(source.read, {"server.port": 0}), source.take_stamp()
    stamps: list[Stamp] = []

    def take_stamp() -> Stamp:
        stamps.append(source.take_stamp())
        return stamps[-1]

    async def scenario() -> None:
        app = App(read(), Keyring(None, Secret("dgm_fake-key-for-tests-0123456789")), ProcessParts({}))
        is_ready = asyncio.Event()
        listening = Listening(None, lambda _: is_ready.set())
        serving = asyncio.create_task(run(app, AppSettings(read, take_stamp, first), listening))
        await asyncio.wait_for(is_ready.wait(), 60)

        def list_names() -> list[str]:
            return [route.name for route in app.gateway.runtime.config.models]

        file.write_text("")
        stamps.clear()
        os.kill(os.getpid(), signal.SIGHUP)
        await wait_until_async(lambda: len(stamps) > 5)  # it has been read several times by now
        assert list_names() == ["parrot"]
        file.write_text(make_config("cuckoo"))
        await wait_until_async(lambda: list_names() == ["cuckoo"])
        assert app.reloads == {"good": 1, "bad": 0}
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, 60)

    asyncio.run(scenario())

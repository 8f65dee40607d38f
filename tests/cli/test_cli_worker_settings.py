"""Which configuration a worker serves: the last good one, whenever the worker or the edit came."""

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from asking import send
from dragoman.app import App, AppSettings, Listening, ProcessParts, run
from dragoman.config.load import ConfigSource
from dragoman.config.secret import Secret
from dragoman.config.settings import Config
from dragoman.tenancy.keys import Keyring
from shell import Served, Shell
from waiting import wait_until

ECHO = '[providers.echo]\nkind = "echo"\n'
PARROT = f'{ECHO}[[models]]\nname = "parrot"\nto = ["echo/echo"]\n'
TOKENS = '{"accessToken": "aoaFAKE", "refreshToken": "aorFAKE", "expiresAt": "2099-01-01T00:00:00Z"}'
ADOPTED = "the edited configuration is in effect"
KEPT = "workers that start from now on begin with the edited configuration"
REQUESTS = 24  # of which two workers get some each


def models(served: Served) -> list[str]:
    body = msgspec.json.decode(send(served, "GET", "/v1/models", key=served.key).body)
    return [model["id"] for model in body["data"]]


def edit(shell: Shell, served: Served, text: str, logged: str) -> None:
    """Write the configuration, and wait until both workers have logged this about it."""
    shell.write("edited.toml", text)
    served.send_signal(signal.SIGHUP)  # sooner than they would look at the file
    wait_until(lambda: served.err.count(logged) >= 2)


def kill_workers(served: Served) -> None:
    """Kill both workers, and wait until others replace them."""
    before = served.workers
    for victim in before:
        os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(served.workers - before) == 2)


def test_a_worker_that_replaces_another_serves_the_last_good_configuration(shell: Shell) -> None:
    path = shell.write("edited.toml", ECHO)
    with shell.serve("--config", str(path), "--workers", "2", "--verbose") as served:
        edit(shell, served, PARROT, ADOPTED)
        wait_until(lambda: KEPT in served.err)  # the parent reads the file after its workers: the next edit waits
        edit(shell, served, "[servr]\n", 'did you mean "server"?')
        kill_workers(served)
        assert all("parrot" in models(served) for _ in range(REQUESTS))
        shell.write("edited.toml", PARROT.replace("parrot", "cuckoo"))
        served.send_signal(signal.SIGHUP)
        wait_until(lambda: all("cuckoo" in models(served) for _ in range(REQUESTS)))
        assert served.end() == 0


@pytest.mark.rest
def test_an_edit_that_would_cost_a_provider_its_secret_is_not_taken_over_by_a_new_worker_either(shell: Shell) -> None:
    path = shell.write("edited.toml", PARROT)
    with shell.serve("--config", str(path), "--workers", "2") as served:
        without_secret = f'{ECHO}[providers.p]\nkind = "openai"\napi_key = "env:NOT_SET"\n'
        edit(shell, served, without_secret, "environment variable NOT_SET is not set")
        kill_workers(served)
        assert all("parrot" in models(served) for _ in range(REQUESTS))
        assert served.end() == 0


def test_an_edit_while_the_gateway_starts_is_in_force_before_it_listens(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.toml"
    file.write_text(ECHO)
    config = config_after_start(tmp_path, partial(file.write_text, PARROT))
    assert [route.name for route in config.models] == ["parrot"]


def test_an_account_that_signs_in_while_the_gateway_starts_is_a_provider_before_it_listens(tmp_path: Path) -> None:
    file = tmp_path / ".local/share/dragoman/kiro.json"
    file.parent.mkdir(parents=True)
    config = config_after_start(tmp_path, partial(file.write_text, TOKENS))
    assert "kiro" in config.providers


def config_after_start(home: Path, change: Callable[[], object]) -> Config:
    """Start a gateway whose configuration is changed right after it was read; return the one that it serves."""
    source = ConfigSource(None, {}, home, home)
    read = partial(source.read, {"server.port": 0})
    stamp = source.take_stamp()
    config = read()
    change()
    seen: list[Config] = []

    def ready(app: App) -> None:
        seen.append(app.gateway.runtime.config)
        os.kill(os.getpid(), signal.SIGTERM)

    async def scenario() -> None:
        app = App(config, Keyring(None, Secret("dgm_fake-key-for-tests-0123456789")), ProcessParts({}))
        await asyncio.wait_for(run(app, AppSettings(read, source.take_stamp, stamp), Listening(None, ready)), 60)

    asyncio.run(scenario())
    return seen[0]


def test_an_edit_right_after_the_start_reaches_every_worker(shell: Shell) -> None:
    path = shell.write("edited.toml", ECHO)
    with shell.serve("--config", str(path), "--workers", "2") as served:
        shell.write("edited.toml", PARROT)
        wait_until(lambda: all("parrot" in models(served) for _ in range(REQUESTS)))


@pytest.mark.rest
def test_an_account_that_signs_in_while_the_gateway_runs_becomes_a_provider_of_every_worker(shell: Shell) -> None:
    # The proxy keeps it from asking the vendor: the models are those that are known without a request.
    with shell.serve("--workers", "2", HTTPS_PROXY="http://127.0.0.1:9") as served:
        assert "kiro/auto" not in models(served)
        shell.write(".local/share/dragoman/kiro.json", TOKENS)
        wait_until(lambda: all("kiro/auto" in models(served) for _ in range(REQUESTS)))
        assert served.end() == 0

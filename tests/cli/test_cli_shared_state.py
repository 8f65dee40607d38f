"""`store.shared`: what is wrong with it ends the start; a server that is away does not, and is found later."""

import logging
from pathlib import Path

import msgspec
import pytest

from gateway import Running, running
from raw_http import get
from shell import Shell
from valkey_server import ValkeyServer
from waiting import wait_until
from wire_json import Json

CONFIG = '[providers.echo]\nkind = "echo"\n[store]\nshared = "env:SHARED"\n'


def read_ready(gateway: Running) -> tuple[int, Json]:
    answer = get(gateway.port, "/ready")
    return answer.status, msgspec.json.decode(answer.body)


def read_state(gateway: Running) -> list[str]:
    lines = get(gateway.port, "/metrics").body.decode().splitlines()
    return [line for line in lines if line.startswith("dragoman_shared_state")]


def test_a_server_that_is_away_degrades_and_is_found_again(
    tmp_path: Path, valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dragoman.store.valkey")
    valkey.kill()
    with running(CONFIG, tmp_path, {"SHARED": valkey.url}) as gateway:
        wait_until(lambda: read_ready(gateway) == (200, {"status": "degraded", "degraded": ["shared"]}))
        assert read_state(gateway) == ['dragoman_shared_state{part="shared"} 0']
        valkey.start()
        wait_until(lambda: read_ready(gateway) == (200, {"status": "ready"}))
        assert read_state(gateway) == ['dragoman_shared_state{part="shared"} 1']
    name = f"valkey://127.0.0.1:{valkey.port}/0"
    first, second = caplog.messages
    assert first.startswith(f"{name} does not answer, so this gateway goes on by itself: ")
    assert second == f"{name} answers again"


def test_without_it_ready_names_no_part(tmp_path: Path) -> None:
    with running('[providers.echo]\nkind = "echo"\n', tmp_path) as gateway:
        assert read_ready(gateway) == (200, {"status": "ready"})
        assert read_state(gateway) == []


def test_an_edit_needs_a_restart_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = '[providers.echo]\nkind = "echo"\n'
    with running(plain, tmp_path) as gateway:
        gateway.adopt(plain + '[store]\nshared = "valkey://127.0.0.1:9"\n')
        assert gateway.app.shared is None
    assert "store.shared was edited: restart the gateway to use it" in caplog.messages


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_wrong_url_ends_the_start_without_its_password(shell: Shell, workers: str) -> None:
    (shell.home / "dragoman.toml").write_text('[store]\nshared = "http://:sk-fake-secret@127.0.0.1:6379"\n')
    done = shell.run("serve", "--workers", workers)
    assert done.code == 1
    assert "dragoman.toml:2: store.shared: expected valkey://HOST:PORT/NUMBER" in done.err
    assert done.err.count("store.shared") == 1
    assert "sk-fake-secret" not in done.out + done.err


@pytest.mark.rest
def test_a_variable_that_is_not_set_ends_the_start(shell: Shell) -> None:
    (shell.home / "dragoman.toml").write_text('[store]\nshared = "env:SHARED"\n')
    done = shell.run("serve")
    assert (done.code, "store.shared: environment variable SHARED is not set" in done.err) == (1, True)

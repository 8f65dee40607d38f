"""The notes of running gateways, and the stop of one: never of a process that only got its pid."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dragoman.operate.gateway.gateway_process import (
    GatewayProcess,
    find_process,
    forget_gateway,
    list_gateways,
    read_beginning,
    record_gateway,
    stop_process,
)

ROOT = "http://127.0.0.1:8484"
GATEWAY = "import signal, sys\nprint('up', flush=True)\nsignal.pause()\n"
# Its first SIGTERM does not end it, as that of a gateway with requests in progress.
DRAINING = """
import signal
def drain(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print("draining", flush=True)
signal.signal(signal.SIGTERM, drain)
print("up", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "DRAGOMAN_DATA": str(tmp_path)}


def start(script: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    process = start(GATEWAY)
    yield process
    process.kill()
    process.communicate()


def write_note(directory: Path, noted: GatewayProcess, name: str) -> Path:
    path = directory / "running" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.encode(noted))
    return path


def describe(process: "subprocess.Popen[bytes]", root: str = ROOT) -> GatewayProcess:
    return GatewayProcess(root, process.pid, read_beginning(process.pid) or "")


def test_a_running_process_is_listed_and_notes_of_ended_ones_are_removed(
    tmp_path: Path, environ: dict[str, str], other: "subprocess.Popen[bytes]"
) -> None:
    own = record_gateway(tmp_path, ROOT)
    reused = write_note(tmp_path, GatewayProcess(ROOT, other.pid, "long ago"), "reused")
    ended = write_note(tmp_path, GatewayProcess(ROOT, 2_147_483_646, "long ago"), "ended")
    broken = own.with_name("broken.json")
    broken.write_text("{")
    assert [(noted.root, noted.pid) for noted in list_gateways(environ)] == [(ROOT, os.getpid())]
    assert (own.exists(), broken.exists(), reused.exists(), ended.exists()) == (True, True, False, False)
    forget_gateway(own)
    assert list_gateways(environ) == []
    assert list_gateways({}) == []


def test_the_newest_gateway_comes_first(
    tmp_path: Path, environ: dict[str, str], other: "subprocess.Popen[bytes]"
) -> None:
    older = record_gateway(tmp_path, ROOT)
    os.utime(older, (1, 1))
    write_note(tmp_path, describe(other), "newer")
    assert [noted.pid for noted in list_gateways(environ)] == [other.pid, os.getpid()]
    found = find_process(environ, ROOT)  # the older one drains: its successor took over its address
    assert found is not None
    assert found.pid == other.pid


@pytest.mark.parametrize(
    ("url", "is_found"),
    [
        ("http://127.0.0.1:8484", True),
        ("http://localhost:8484", True),
        ("http://127.0.0.1:8485", False),
        ("http://10.0.0.1:8484", False),
        ("http://127.0.0.1:bad", False),
    ],
)
def test_a_process_is_found_by_the_address_of_its_gateway(
    tmp_path: Path, environ: dict[str, str], url: str, is_found: bool
) -> None:
    record_gateway(tmp_path, ROOT)
    assert (find_process(environ, url) is not None) == is_found


def test_a_stopped_process_has_ended(other: "subprocess.Popen[bytes]") -> None:
    waits: list[str] = []
    stop_process(describe(other), lambda: waits.append("waits"))
    assert other.wait(60) == -signal.SIGTERM
    assert waits == []
    stop_process(GatewayProcess(ROOT, other.pid, "it has ended"), lambda: None)  # changes nothing


def test_a_process_that_got_the_pid_of_a_gateway_is_not_stopped(other: "subprocess.Popen[bytes]") -> None:
    stop_process(GatewayProcess(ROOT, other.pid, "when the gateway began"), lambda: None)
    assert other.poll() is None
    assert describe(other).is_running


def test_the_beginning_of_a_process_is_known_without_linux_too(
    other: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.operate.gateway.gateway_process.BOOT", Path("/nowhere"))
    monkeypatch.delattr(os, "pidfd_open")
    process = describe(other)
    assert process.began
    assert read_beginning(2_147_483_646) is None
    stop_process(GatewayProcess(ROOT, other.pid, "when the gateway began"), lambda: None)
    assert (other.poll(), process.is_running) == (None, True)
    stop = threading.Thread(target=stop_process, args=(process, lambda: None))
    stop.start()
    assert other.wait(60) == -signal.SIGTERM  # reaped, which `ps` needs
    stop.join(60)
    assert not stop.is_alive()


def test_a_process_that_drains_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.operate.gateway.gateway_process.QUICK_S", 0.0)
    draining = start(DRAINING)
    process, output = describe(draining), draining.stdout
    assert output is not None
    waits: list[bytes] = []

    def stop_again() -> None:
        waits.append(output.readline())
        stop_process(process, lambda: None)

    try:
        stop_process(process, stop_again)
        assert draining.wait(60) == -signal.SIGTERM
        assert waits == [b"draining\n"]
    finally:
        draining.kill()
        draining.communicate()

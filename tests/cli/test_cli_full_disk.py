"""A gateway whose output cannot be written, to a full disk or a closed pipe, still serves."""

import re
import signal
import subprocess
from dataclasses import dataclass

import pytest

from asking import send
from shell import PATIENCE_S, PROGRAM, Shell
from waiting import wait_until


@dataclass(frozen=True)
class Address:
    port: int


def find_address(shell: Shell) -> Address | None:
    """Return where the gateway of this home listens, from what it notes for other commands."""
    for note in (shell.home / ".local/share/dragoman/running").glob("*.json"):
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", note.read_text()):
            return Address(int(found[1]))
    return None


def serve(shell: Shell, redirection: str, workers: int = 1) -> str:
    """Run a gateway with this redirection of its output, see it answer, stop it, and return its errors."""
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *PROGRAM, "serve", "--port", "0", "--workers", str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=shell.home,
        env=shell.environ,
        start_new_session=True,
    )
    wait_until(lambda: find_address(shell) is not None or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    for _ in range(3):
        address = find_address(shell)
        assert address is not None
        assert send(address, "GET", "/health").status == 200
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return err


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("redirection", [">/dev/full", "2>/dev/full", ">/dev/full 2>&1", ">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.rest
def test_a_gateway_runs_without_its_output(shell: Shell, redirection: str, workers: int) -> None:
    err = serve(shell, redirection, workers)
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_the_log_reports_that_the_banner_and_its_key_are_lost(shell: Shell) -> None:
    err = serve(shell, ">/dev/full")
    assert "the banner could not be written to stdout: No space left on device" in err
    assert "`dragoman keys create` makes another" in err
    assert "dgm_" not in err

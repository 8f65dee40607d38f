"""A gateway whose output cannot be written, to a full disk or a closed pipe, still serves."""

import signal
import subprocess
import urllib.error
import urllib.request

import pytest
from bench.ports import find_free_port

from shell import PROGRAM, Shell
from waiting import wait_until

PATIENCE_S = 60.0


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=20) as reply:
            return int(reply.status) == 200
    except (OSError, urllib.error.URLError):
        return False


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("redirection", [">/dev/full", "2>/dev/full", ">/dev/full 2>&1", ">&-", "2>&-", ">&- 2>&-"])
def test_a_gateway_runs_without_its_output(shell: Shell, redirection: str, workers: int) -> None:
    port = find_free_port()
    words = ("serve", "--port", str(port), "--workers", str(workers))
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=shell.home,
        env=shell.environ,
        start_new_session=True,
    )
    wait_until(lambda: is_healthy(port) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    for _ in range(3):
        assert is_healthy(port)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_the_log_reports_that_the_banner_and_its_key_are_lost(shell: Shell) -> None:
    port = find_free_port()
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" >/dev/full', "sh", *PROGRAM, "serve", "--port", str(port)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=shell.home,
        env=shell.environ,
    )
    wait_until(lambda: is_healthy(port))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert "the banner could not be written to stdout: No space left on device" in err
    assert "`dragoman keys create` makes another" in err
    assert "dgm_" not in err

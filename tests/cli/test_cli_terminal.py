"""SIGHUP: a gateway that was started in a terminal ends when that is closed; without a terminal it reloads."""

import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from cli.test_cli_serve import alive
from shell import PATIENCE_S, PROGRAM, Shell
from waiting import wait_until

# Runs a command as a shell in a terminal would: the terminal is its controlling one, and SIGHUP is not ignored, even if
# the tests themselves run under nohup.
IN_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A terminal in which a gateway was started."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=shell.home,
            env=shell.environ,
            start_new_session=True,
        )
        os.close(theirs)
        self.output = b""

    def read_until(self, text: str) -> str:
        until = time.monotonic() + PATIENCE_S
        while text.encode() not in self.output:
            assert time.monotonic() < until, self.output
            self.output += os.read(self._ours, 65_536)
        return self.output.decode()

    def close(self) -> None:
        os.close(self._ours)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_closed_terminal_ends_the_gateway_that_was_started_in_it(shell: Shell, workers: str) -> None:
    terminal = Terminal(shell, *PROGRAM, "serve", "--port", "0", "--workers", workers)
    try:
        terminal.read_until("--write")
        terminal.close()
        assert terminal.process.wait(PATIENCE_S) == 0
    finally:
        terminal.process.kill()
    assert list((shell.home / ".local/share/dragoman/running").iterdir()) == []


@pytest.mark.rest
def test_a_gateway_under_nohup_outlives_its_terminal(shell: Shell) -> None:
    terminal = Terminal(shell, "nohup", *PROGRAM, "serve", "--port", "0")
    output = shell.home / "nohup.out"
    wait_until(lambda: output.exists() and "--write" in output.read_text())
    found = re.search(r"listens on (http://\S+)", output.read_text())
    assert found is not None
    terminal.close()
    try:
        wait_until(lambda: "the edited configuration is in effect" in output.read_text())
        assert f"at {found[1]}, process {terminal.process.pid}: running" in shell.run("status").out
    finally:
        terminal.process.terminate()
    assert terminal.process.wait(PATIENCE_S) == 0


def test_without_a_terminal_every_worker_reads_the_configuration_again(shell: Shell) -> None:
    with shell.serve("--workers", "2") as gateway:
        gateway.send_signal(signal.SIGHUP)
        wait_until(lambda: gateway.err.count("the edited configuration is in effect") >= 2)
        assert alive(gateway.pid)
        assert gateway.end() == 0

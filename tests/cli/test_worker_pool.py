"""The parent of several workers, by itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli.serving.worker_pool import EARLY_S, WINDOW_S, EarlyDeaths

EARLY_SIGNALS = """
import os, signal
from dragoman.cli.serving.worker_pool import WorkerPool, accept_signals, announce_ready

class Hooks:
    def on_ready(self): pass
    def on_adopted(self): pass
    def on_stopping(self, accepting, replace): pass

def work(number, links):
    for early in (signal.SIGHUP, signal.SIGINT):  # as the parent forwards them, before there are handlers
        os.kill(os.getpid(), early)
    announce_ready(links)
    seen = []
    for early in (signal.SIGHUP, signal.SIGINT):
        signal.signal(early, lambda number, frame: seen.append(number))
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    accept_signals()
    os.write(1, str(sorted(seen)).encode())
    os.kill(os.getppid(), signal.SIGTERM)
    while True:
        signal.pause()

raise SystemExit(WorkerPool(1, work, Hooks()).run())
"""


def test_a_signal_that_reaches_a_starting_worker_waits_for_its_handler() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY_SIGNALS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[1, 2]"), done.stderr


KILLED_IN_TURN = """
import os, signal
from dragoman.cli.serving import worker_pool
from dragoman.cli.serving.worker_pool import WorkerPool, accept_signals, announce_ready

worker_pool.EARLY_S = {early_s}
ENDED = "ended"  # one byte for each worker that was killed

class Hooks:
    def on_ready(self): pass
    def on_adopted(self): pass
    def on_stopping(self, accepting, replace): pass

def work(number, links):
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    accept_signals()
    announce_ready(links)
    with open(ENDED, "ab", buffering=0) as file:
        if number or file.tell() == {deaths}:
            if not number:
                os.kill(os.getppid(), signal.SIGTERM)
            while True:
                signal.pause()
        file.write(b".")
    os.kill(os.getpid(), signal.SIGKILL)

raise SystemExit(WorkerPool({workers}, work, Hooks()).run())
"""


def kill_in_turn(directory: Path, early_s: float, deaths: int, workers: int) -> "subprocess.CompletedProcess[str]":
    """Let the first worker be killed so often, then stop the gateway."""
    script = KILLED_IN_TURN.format(early_s=early_s, deaths=deaths, workers=workers)
    words = [sys.executable, "-c", script]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=directory)


def test_a_worker_that_served_for_a_while_is_replaced_however_many_died(tmp_path: Path) -> None:
    done = kill_in_turn(tmp_path, early_s=0.0, deaths=12, workers=2)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ended").read_text() == "." * 12
    assert "keep failing" not in done.stderr


def test_as_many_early_deaths_as_there_are_workers_stop_none(tmp_path: Path) -> None:
    done = kill_in_turn(tmp_path, early_s=60.0, deaths=8, workers=8)
    assert "keep failing" not in done.stderr
    assert (tmp_path / "ended").read_text() == "." * 8


def test_workers_that_die_at_their_start_again_and_again_stop_the_gateway(tmp_path: Path) -> None:
    done = kill_in_turn(tmp_path, early_s=60.0, deaths=50, workers=8)
    assert (done.returncode, (tmp_path / "ended").read_text()) == (1, "." * 9)
    assert "workers keep failing at their start (9 within 60 s)" in done.stderr


def test_only_deaths_soon_after_the_start_and_close_together_are_counted() -> None:
    rows = (
        # workers, time between two deaths, age at death (None: never ready), deaths that are borne in a row
        (1, 0.1, None, 5),
        (8, 0.1, None, 8),
        (2, 0.1, EARLY_S - 0.1, 5),
        (2, 0.1, EARLY_S, 100),
        (2, WINDOW_S / 5, 0.0, 100),
        (2, WINDOW_S / 5 - 0.1, 0.0, 5),
    )
    for workers, pause, age, borne in rows:
        deaths, counted = EarlyDeaths(workers), 0
        while counted < 100:
            now = 1000.0 + counted * pause
            if deaths.exceed_limit(now, None if age is None else now - age):
                break
            counted += 1
        assert counted == borne, (workers, pause, age)


SILENT_FIRST = """
import os, signal, time
from dragoman.cli.serving import worker_pool
from dragoman.cli.serving.worker_pool import AliveSigns, WorkerPool, accept_signals, announce_ready

worker_pool.MAX_SILENT = 4
worker_pool.EARLY_S = 0.0
STARTED = "started"  # one byte for each first worker

class Hooks:
    def on_ready(self): pass
    def on_adopted(self): pass
    def on_stopping(self, accepting, replace): pass

def work(number, links):
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    accept_signals()
    announce_ready(links)
    if number == 0:
        with open(STARTED, "ab", buffering=0) as file:
            file.write(b".")
            is_second = file.tell() == 2
        signs = AliveSigns(links)
        signs.send()
        if not is_second:
            os.kill(os.getpid(), signal.SIGSTOP)
        for _ in range(30):
            time.sleep(0.1)
            signs.send()
        os.kill(os.getppid(), signal.SIGTERM)
    while True:
        signal.pause()

raise SystemExit(WorkerPool(2, work, Hooks()).run())
"""


@pytest.mark.rest
def test_a_first_worker_that_is_silent_is_killed_and_one_that_is_alive_is_not(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SILENT_FIRST]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "started").read_bytes() == b".."
    assert done.stderr.count("was silent for 4 s") == 1

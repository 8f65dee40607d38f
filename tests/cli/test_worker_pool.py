"""The parent of several workers, by itself."""

import subprocess
import sys

EARLY_SIGNALS = """
import os, signal
from dragoman.cli.serving.worker_pool import READY, WorkerPool, accept_signals, notify_parent

class Hooks:
    def on_ready(self): pass
    def on_adopted(self): pass
    def on_stopping(self, accepting, replace): pass

def work(number, links):
    for early in (signal.SIGHUP, signal.SIGINT):  # as the parent forwards them, before there are handlers
        os.kill(os.getpid(), early)
    notify_parent(READY)
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

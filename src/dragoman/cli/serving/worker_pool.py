"""Run several worker processes, and replace those that die, up to a limit."""

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn, Protocol

from msgspec import Struct

log = logging.getLogger(__name__)

MAX_REPLACED = 5
WINDOW_S = 60.0
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
READY = signal.SIGUSR1
ADOPTED = signal.SIGUSR2
HANDLED = {signal.SIGCHLD, READY, ADOPTED, *FORWARDED}


class Links(Struct, frozen=True):
    """A worker's pipes to its parent; nothing is written to them, each side only closes its end."""

    lifeline: int  # end of file when the parent is gone: the worker stops
    replaced: int  # end of file when a new gateway accepts connections: the worker stops accepting
    accepting: int  # closed by the worker when it has stopped accepting


class Hooks(Protocol):
    """What the parent does on behalf of its workers."""

    def on_ready(self) -> None: ...  # the first worker accepts connections
    def on_adopted(self) -> None: ...  # a worker has adopted an edited configuration
    def on_stopping(self, accepting: int, replace: Callable[[], None]) -> None: ...  # the workers are stopping


# The worker's number -> an exit code. What the parent forwards waits until the worker calls `accept_signals`.
Work = Callable[[int, Links], int]


class WorkerPool:
    """The parent's side. Signals are handled one after the other in a loop, not in signal handlers.

    Each worker holds the reading end of a pipe whose writing end only the parent has: when the parent dies, for
    whatever reason, the worker reads end of file and stops.
    """

    def __init__(self, size: int, work: Work, hooks: Hooks, *, ends_with_terminal: bool = False) -> None:
        self._size = size
        self._ends_with_terminal = ends_with_terminal
        self._work = work
        self._hooks = hooks
        self._alive: dict[int, int] = {}  # pid -> number; the one that replaces a worker has its number
        self._replaced: deque[float] = deque(maxlen=MAX_REPLACED)
        self._ready = False
        self._stopping = False
        self._code = 0
        self._lifeline_reader, self._lifeline_writer = os.pipe()
        self._replaced_reader, self._replaced_writer = os.pipe()
        self._accepting_reader, self._accepting_writer = os.pipe()

    def run(self) -> int:
        """Run until all workers have ended. Return 0 if they were stopped, 1 if they could not be kept alive."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        for number in range(self._size):
            self._start_worker(number)
        while self._alive:
            self._handle(signal.sigwait(HANDLED))
        return self._code

    def _handle(self, number: signal.Signals | int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == READY:
            if not self._ready and not self._stopping:
                self._ready = True
                self._hooks.on_ready()
        elif number == ADOPTED:
            self._hooks.on_adopted()
        elif number == signal.SIGHUP and self._ends_with_terminal:
            if not self._stopping:  # several processes may send one when a terminal is closed
                self._forward(signal.SIGTERM)
                self._begin_stopping()
        else:
            self._forward(number)
            if number != signal.SIGHUP:
                self._begin_stopping()

    def _begin_stopping(self) -> None:
        """Stop replacing workers; without any further fork the parent may start threads."""
        if self._stopping:
            return
        self._stopping = True
        os.close(self._accepting_writer)
        self._hooks.on_stopping(self._accepting_reader, lambda: os.close(self._replaced_writer))

    def _reap(self) -> None:
        while self._alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._alive.pop(pid, None)
            if number is not None:
                self._replace(pid, number, os.waitstatus_to_exitcode(status))

    def _replace(self, pid: int, number: int, code: int) -> None:
        if self._stopping:
            self._code = self._code or int(code != 0)
            return
        now = time.monotonic()
        is_crash_loop = len(self._replaced) == MAX_REPLACED and now - self._replaced[0] < WINDOW_S
        if not self._ready or is_crash_loop:
            if self._ready:
                log.error("workers keep failing (%d within %.0f s): stopping", MAX_REPLACED + 1, WINDOW_S)
            self._code = 1
            self._forward(signal.SIGTERM)
            self._begin_stopping()
            return
        log.error("worker %d ended with exit code %d: starting another", pid, code)
        self._replaced.append(now)
        self._start_worker(number)

    def _forward(self, number: signal.Signals | int) -> None:
        for pid in self._alive:
            os.kill(pid, number)

    def _start_worker(self, number: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._run_worker(number)
        self._alive[pid] = number

    def _run_worker(self, number: int) -> NoReturn:
        """Run the worker in the child process; never return into the parent's stack."""
        code = 1
        try:
            os.setpgrp()  # Ctrl-C reaches every process of the terminal's group; only the parent forwards it
            os.close(self._lifeline_writer)
            os.close(self._replaced_writer)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED - set(FORWARDED))
            code = self._work(number, Links(self._lifeline_reader, self._replaced_reader, self._accepting_writer))
        except KeyboardInterrupt:
            code = 0
        finally:
            os._exit(code)


def accept_signals() -> None:
    """Let the parent's signals reach this worker, which handles them from now on; those that waited come first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def notify_parent(what: signal.Signals) -> None:
    """Tell the parent that this worker accepts connections (READY), or has adopted an edited file (ADOPTED)."""
    os.kill(os.getppid(), what)

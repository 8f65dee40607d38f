"""A piece of work comes in; several processes do it at once, and those that die are replaced, up to a point."""

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
TOLD = (0, -signal.SIGTERM)  # the latter is a worker that had not yet begun to listen to signals
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
READY = signal.SIGUSR1
ADOPTED = signal.SIGUSR2
HEEDED = {signal.SIGCHLD, READY, ADOPTED, *PASSED_ON}


class Links(Struct, frozen=True):
    """A worker's pipes to its parent, which both sides use by closing their end alone."""

    lifeline: int  # reads its end when the parent is gone: the worker stops
    replaced: int  # reads its end when a new gateway accepts the connections: the worker accepts no more
    accepting: int  # closed by the worker when it has stopped accepting


class Hooks(Protocol):
    """What the parent does on behalf of its workers."""

    def on_ready(self) -> None: ...  # the first worker serves
    def on_adopted(self) -> None: ...  # a worker has taken over an edited configuration
    def on_stopping(self, accepting: int, replace: Callable[[], None]) -> None: ...  # the workers were told to stop


Work = Callable[[Links], int]  # returns an exit code


class Crew:
    """The parent's side. Signals are taken one by one, never in a handler.

    Each worker holds the reading end of a pipe whose writing end only the parent has: when the parent is gone,
    however it went, the worker reads the end and stops.
    """

    def __init__(self, size: int, work: Work, hooks: Hooks) -> None:
        self._size = size
        self._work = work
        self._hooks = hooks
        self._alive: set[int] = set()
        self._replaced: deque[float] = deque(maxlen=MAX_REPLACED)
        self._ready = False
        self._stopping = False
        self._code = 0
        self._lifeline, self._grip = os.pipe()
        self._replaced_reader, self._replaced_writer = os.pipe()
        self._accepting_reader, self._accepting_writer = os.pipe()

    def run(self) -> int:
        """Returns once all have ended: 0 if they were told to, 1 if they could not be kept alive."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)
        for _ in range(self._size):
            self._hire()
        while self._alive:
            self._heed(signal.sigwait(HEEDED))
        return self._code

    def _heed(self, number: signal.Signals | int) -> None:
        if number == signal.SIGCHLD:
            self._bury()
        elif number == READY:
            if not self._ready and not self._stopping:
                self._ready = True
                self._hooks.on_ready()
        elif number == ADOPTED:
            self._hooks.on_adopted()
        else:
            self._tell(number)
            if number != signal.SIGHUP:
                self._begin_stopping()

    def _begin_stopping(self) -> None:
        """No worker is hired from now on, so the parent may start threads."""
        if self._stopping:
            return
        self._stopping = True
        os.close(self._accepting_writer)
        self._hooks.on_stopping(self._accepting_reader, lambda: os.close(self._replaced_writer))

    def _bury(self) -> None:
        while self._alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._alive.discard(pid)
            self._after(pid, os.waitstatus_to_exitcode(status))

    def _after(self, pid: int, code: int) -> None:
        if self._stopping:
            self._code = self._code or int(code not in TOLD)
            return
        now = time.monotonic()
        crowded = len(self._replaced) == MAX_REPLACED and now - self._replaced[0] < WINDOW_S
        if not self._ready or crowded:
            if self._ready:
                log.error("workers keep dying (%d within %.0f s): giving up", MAX_REPLACED + 1, WINDOW_S)
            self._code = 1
            self._tell(signal.SIGTERM)
            self._begin_stopping()
            return
        log.error("worker %d ended with %d: a new one takes its place", pid, code)
        self._replaced.append(now)
        self._hire()

    def _tell(self, number: signal.Signals | int) -> None:
        for pid in self._alive:
            os.kill(pid, number)

    def _hire(self) -> None:
        pid = os.fork()
        if pid == 0:
            self._labour()
        self._alive.add(pid)

    def _labour(self) -> NoReturn:
        """The child's side: it never returns into the parent's stack."""
        code = 1
        try:
            os.setpgrp()  # Ctrl-C on a terminal reaches every process of its group; the parent passes it on once
            os.close(self._grip)
            os.close(self._replaced_writer)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)
            code = self._work(Links(self._lifeline, self._replaced_reader, self._accepting_writer))
        except KeyboardInterrupt:
            code = 0
        finally:
            os._exit(code)


def tell_parent(what: signal.Signals) -> None:
    """Tell the parent that this worker serves (READY), or has taken over an edited configuration (ADOPTED)."""
    os.kill(os.getppid(), what)

"""Run several worker processes, and replace those that die, up to a limit."""

import logging
import os
import signal
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn, Protocol

from msgspec import Struct

log = logging.getLogger(__name__)

MIN_EARLY_DEATHS = 5
WINDOW_S = 60.0
EARLY_S = 10.0  # a worker that dies so soon after it was ready, or before, may do so each time
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
READY = signal.SIGUSR1
ADOPTED = signal.SIGUSR2
TICK = signal.SIGALRM  # each second, once the first worker says that it is alive
HANDLED = {signal.SIGCHLD, READY, ADOPTED, TICK, *FORWARDED}
FIRST = 0  # the worker that others ask for limits
MAX_SILENT = 10  # seconds, after which it is killed: the others refuse requests meanwhile
_PID = struct.Struct("q")


class Links(Struct, frozen=True):
    """A worker's pipes to its parent; nothing is written to most of them, each side only closes its end."""

    lifeline: int  # end of file when the parent is gone: the worker stops
    replaced: int  # end of file when a new gateway accepts connections: the worker stops accepting
    accepting: int  # closed by the worker when it has stopped accepting
    ready: int  # the worker writes its process id when it accepts connections: equal signals are merged into one
    alive: int  # the first worker writes a byte each second, while others may ask it for limits


class EarlyDeaths:
    """Decides whether workers fail at their start again and again; those that served for a while do not count."""

    def __init__(self, workers: int) -> None:
        self.limit = max(MIN_EARLY_DEATHS, workers)  # all workers may die of one cause at the same time
        self._times: deque[float] = deque(maxlen=self.limit)

    def exceed_limit(self, now: float, ready_at: float | None) -> bool:
        """Record a death. `ready_at` is when the worker was ready, None if it never was; times are in seconds."""
        if ready_at is not None and now - ready_at >= EARLY_S:
            return False
        if len(self._times) == self.limit and now - self._times[0] < WINDOW_S:
            return True
        self._times.append(now)
        return False


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
        self._ready_at: dict[int, float] = {}  # pid -> when the worker was ready
        self._early_deaths = EarlyDeaths(size)
        self._ready = False
        self._stopping = False
        self._code = 0
        self._lifeline_reader, self._lifeline_writer = os.pipe()
        self._replaced_reader, self._replaced_writer = os.pipe()
        self._accepting_reader, self._accepting_writer = os.pipe()
        self._ready_reader, self._ready_writer = os.pipe()
        self._alive_reader, self._alive_writer = os.pipe()
        self._silent: int | None = None  # seconds for which the first worker was silent; None: it is not watched
        for descriptor in (self._ready_reader, self._alive_reader, self._alive_writer):
            os.set_blocking(descriptor, False)

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
        elif number == TICK:
            self._watch_first()
        elif number == READY:
            self._record_ready()
            if self._silent is None and self._is_first_alive():
                self._silent = 0
                signal.setitimer(signal.ITIMER_REAL, 1, 1)
            if self._ready_at and not self._ready and not self._stopping:
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

    def _watch_first(self) -> None:
        """Kill the first worker if it has been silent for too long; only seconds in which this process ran count."""
        if self._silent is None or self._stopping:
            return
        self._silent = 0 if self._is_first_alive() else self._silent + 1
        if self._silent < MAX_SILENT:
            return
        for pid, number in self._alive.items():
            if number == FIRST:
                log.error("worker %d was silent for %d s: killing it", pid, MAX_SILENT)
                os.kill(pid, signal.SIGKILL)
        self._stop_watching()

    def _stop_watching(self) -> None:
        """Watch the first worker no more, until the next one says that it is alive."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._is_first_alive()
        self._silent = None

    def _is_first_alive(self) -> bool:
        with suppress(BlockingIOError):
            return bool(os.read(self._alive_reader, 4096))
        return False

    def _begin_stopping(self) -> None:
        """Stop replacing workers; without any further fork the parent may start threads."""
        if self._stopping:
            return
        self._stopping = True
        os.close(self._accepting_writer)
        self._hooks.on_stopping(self._accepting_reader, lambda: os.close(self._replaced_writer))

    def _record_ready(self) -> None:
        for pid in self._read_ready():
            self._ready_at[pid] = time.monotonic()

    def _read_ready(self) -> Iterator[int]:
        with suppress(BlockingIOError):
            while True:
                for (pid,) in _PID.iter_unpack(os.read(self._ready_reader, 64 * _PID.size)):
                    yield pid

    def _reap(self) -> None:
        self._record_ready()
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
        is_crash_loop = self._early_deaths.exceed_limit(time.monotonic(), self._ready_at.pop(pid, None))
        if not self._ready or is_crash_loop:
            if self._ready:
                limit = self._early_deaths.limit + 1
                log.error("workers keep failing at their start (%d within %.0f s): stopping", limit, WINDOW_S)
            self._code = 1
            self._forward(signal.SIGTERM)
            self._begin_stopping()
            return
        log.error("worker %d ended with exit code %d: starting another", pid, code)
        if number == FIRST:
            self._stop_watching()
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
            links = Links(
                lifeline=self._lifeline_reader,
                replaced=self._replaced_reader,
                accepting=self._accepting_writer,
                ready=self._ready_writer,
                alive=self._alive_writer,
            )
            code = self._work(number, links)
        except KeyboardInterrupt:
            code = 0
        finally:
            os._exit(code)


def accept_signals() -> None:
    """Let the parent's signals reach this worker, which handles them from now on; those that waited come first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def announce_ready(links: Links) -> None:
    """Tell the parent that this worker accepts connections."""
    os.write(links.ready, _PID.pack(os.getpid()))
    os.kill(os.getppid(), READY)


class AliveSigns:
    """What the first worker sends its parent each second."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._is_first = True

    def send(self) -> None:
        with suppress(BlockingIOError):  # the parent is stopped
            os.write(self._links.alive, b".")
        if self._is_first:
            self._is_first = False
            os.kill(os.getppid(), READY)


def announce_adopted() -> None:
    """Tell the parent that this worker has adopted an edited configuration."""
    os.kill(os.getppid(), ADOPTED)

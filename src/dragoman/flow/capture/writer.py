"""Captures come in from the event loop; a thread of its own masks them and writes them, or counts what it could not."""

import logging
import queue
import threading
from collections.abc import Callable

from msgspec import Struct

from dragoman.flow.capture.directory import Captures
from dragoman.flow.capture.format import Capture
from dragoman.flow.capture.masking import masked_capture
from dragoman.net.tasks import describe_fault

log = logging.getLogger(__name__)

WAITING = 1024  # captures that wait to be written, within the room that all share; more are dropped
PATIENCE_S = 5.0  # for what still waits when the gateway stops


class Room:
    """Memory that all captures share: the streams under way and those that wait to be written."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size

    @property
    def left(self) -> int:
        return self._left


class Job(Struct, frozen=True):
    capture: Callable[[], Capture]  # put together only here, where it holds up nobody
    secrets: frozenset[bytes]
    where: Captures
    size: int


class CaptureWriter:
    """A full disk or a directory that cannot be written is reported once, until a capture is written again."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._jobs: queue.Queue[Job | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._troubled = False
        self.written = 0
        self.dropped = 0

    def put(self, job: Job) -> None:
        """Never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="captures", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.dropped += 1
            self._room.give_back(job.size)

    def close(self) -> None:
        """Waits a little for what is still to be written."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._jobs.put(None, timeout=PATIENCE_S)
        except queue.Full:
            return
        thread.join(PATIENCE_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._write(job)
            self._room.give_back(job.size)

    def _write(self, job: Job) -> None:
        try:
            job.where.write(masked_capture(job.capture(), job.secrets))
        except Exception as fault:
            self.dropped += 1
            if not self._troubled:
                self._troubled = True
                why = fault.strerror if isinstance(fault, OSError) else describe_fault(fault)
                log.error("captures cannot be written to %s: %s", job.where.directory, why)
        else:
            self.written += 1
            self._troubled = False

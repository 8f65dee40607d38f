"""Capture requests: start a recording for each, and write it from a thread once the request has ended."""

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import Debug
from dragoman.net.errors import describe_fault
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink
from dragoman.proxy.capture.files import CaptureDirectory, capture_directory
from dragoman.proxy.capture.format import Capture
from dragoman.proxy.capture.masking import mask_capture
from dragoman.proxy.capture.memory_bounds import MemoryBudget
from dragoman.proxy.capture.recording import Recording
from dragoman.translate.hub.failure import describe_cause
from dragoman.translate.protocols import find_client_keys

log = logging.getLogger(__name__)

MEMORY_BYTES = 128 * 1024 * 1024  # for all recordings together, in progress or waiting to be written
MAX_WAITING = 1024  # recordings that wait to be written; more are dropped
STOP_TIMEOUT_S = 5.0  # to write the recordings that wait when the gateway stops


class Counts(Struct, frozen=True):
    written: int
    dropped: int


class Job(Struct, frozen=True):
    """A recording to be written."""

    make_capture: Callable[[], Capture]  # called by the writer's thread, because it takes time
    secrets: frozenset[bytes]
    directory: CaptureDirectory
    size: int


class RequestCapture:
    """Records the requests that the configuration wants captured.

    A request that is not captured costs one comparison; one that is captured is never delayed.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, keep: Callable[[Job], None] | None = None) -> None:
        self._budget = MemoryBudget(memory_bytes)
        self._writer = CaptureWriter(self._budget)
        self._keep = self._writer.put if keep is None else keep  # takes each recording that has ended; must not block
        self._directory: tuple[Debug, CaptureDirectory] | None = None
        self.live_left = 0  # how many more requests are recorded because the console watches them

    def begin(self, request: HttpRequest, sink: ReplySink, started_at: float, debug: Debug) -> Recording | None:
        """Start to record a request; return None if it is not to be captured."""
        if debug.capture == "off" and self.live_left <= 0:
            return None
        recording = Recording(request, started_at, self._budget, lambda ended: self._finish(ended, debug))
        recording.secrets.update(find_client_keys(request.headers.fields, request.query))
        sink.listener = recording
        return recording

    def _finish(self, recording: Recording, debug: Debug) -> None:
        if debug.capture == "off" or (debug.capture == "errors" and not recording.failed):
            self._budget.release(recording.memory.size)
            return
        secrets = frozenset(recording.secrets)
        self._keep(Job(recording.make_capture, secrets, self._find_directory(debug), recording.memory.size))

    def remove_old(self, debug: Debug) -> None:
        """Remove captures that are too old, even if nothing is captured now. Blocks on the disk."""
        with suppress(OSError):
            capture_directory(debug).prune()

    def _find_directory(self, debug: Debug) -> CaptureDirectory:
        """Return the same directory for as long as the settings do not change: it remembers its files."""
        settings = replace(debug, capture="all")  # keys differ in how much is captured
        if self._directory is None or self._directory[0] != settings:
            self._directory = (settings, capture_directory(debug))
        return self._directory[1]

    @property
    def counts(self) -> Counts:
        return self._writer.counts

    @property
    def memory_left(self) -> int:
        """Bytes left for more recordings."""
        return self._budget.left

    def close(self) -> None:
        """Write the recordings that wait. Blocks for up to twice STOP_TIMEOUT_S."""
        self._writer.close()


class CaptureWriter:
    """Masks and writes captures on a thread of its own.

    If a directory cannot be written, that is logged once, until a capture is written again.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._jobs: queue.Queue[Job | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._failing = False
        self._written = 0
        self._dropped = 0

    @property
    def counts(self) -> Counts:
        return Counts(self._written, self._dropped)

    def put(self, job: Job) -> None:
        """Queue a recording, or drop it if the queue is full. Never blocks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="captures", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._dropped += 1
            self._budget.release(job.size)

    def close(self) -> None:
        """Write what is queued, if that is possible within STOP_TIMEOUT_S."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._jobs.put(None, timeout=STOP_TIMEOUT_S)
        except queue.Full:
            return
        thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._write(job)
            self._budget.release(job.size)
            del job  # else the last recording would stay in memory until the next one comes

    def _write(self, job: Job) -> None:
        try:
            job.directory.write(mask_capture(job.make_capture(), job.secrets))
        except Exception as error:
            self._dropped += 1
            if not self._failing:
                self._failing = True
                cause = describe_cause(error) if isinstance(error, OSError) else describe_fault(error)
                log.error("captures cannot be written to %s: %s", job.directory.path, cause)
        else:
            self._written += 1
            self._failing = False

"""Collect the metrics of this process, share them with the other workers, and render those of all for a scrape."""

import asyncio
import fcntl
import logging
import os
import platform
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from dragoman import __version__
from dragoman.net.errors import describe_fault
from dragoman.net.tasks import spawn
from dragoman.operate.metrics import catalogue as catalogue
from dragoman.operate.metrics.readings import (
    Histogram,
    Reading,
    RequestMetrics,
    drop_gauges,
    merge_readings,
    render_text,
)
from dragoman.proxy.outcome import OutcomeObserver
from dragoman.translate.hub.failure import describe_cause
from dragoman.translate.protocols import OPERATIONS

if TYPE_CHECKING:
    from dragoman.operate.metrics.exporter import Exporter
    from dragoman.operate.metrics.otlp import Address

log = logging.getLogger(__name__)

SLOT_BYTES = 16 * 1024 * 1024  # the file is sparse: only published bytes take up space
STALE_S = 10.0  # a worker that has published nothing for this time is dead
MAX_READS = 5
SCRAPE_PAUSE = 3  # times what a scrape took

_HEAD = struct.Struct("<IId")  # length, checksum, time by the monotonic clock that all processes share
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Reading]).decode


class Snapshot(msgspec.Struct, frozen=True):
    """The readings of one worker at one time."""

    at: float
    readings: list[Reading]


EMPTY = Snapshot(0.0, [])


class SharedCounters:
    """An anonymous file with a slot for each worker, opened before they are forked: any of them can report the sum.

    No other process can open it, and it disappears with the last of them. A worker that takes over the slot of a dead
    one adds that one's counters to its own, so that no counter ever decreases.
    """

    def __init__(self, workers: int) -> None:
        import tempfile  # 1 MB, only for several workers

        self._file = tempfile.TemporaryFile(prefix="dragoman-")  # noqa: SIM115 - lives as long as the process
        self._workers = workers

    def claim_slot(self) -> "WorkerSlot":
        """Return a slot that no living worker has locked; the system releases the locks of a process that ends."""
        for index in range(self._workers):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
            except OSError:
                continue
            return WorkerSlot(self._file.fileno(), index, self._workers)
        raise OSError("more workers than slots")


class WorkerSlot:
    """One worker's slot, from which it also reads the others."""

    def __init__(self, file: int, index: int, workers: int) -> None:
        self._file = file
        self._index = index
        self._last_read = [EMPTY] * workers
        self._inherited = merge_readings(drop_gauges(self._read(index).readings))

    def publish(self, readings: Iterable[Reading]) -> None:
        """Replace this worker's readings; raises OSError if they do not fit or the disk is full."""
        payload = _encode([*readings, *self._inherited])
        if len(payload) > SLOT_BYTES - _HEAD.size:
            raise OSError(f"{len(payload)} bytes of readings do not fit into a slot")
        head = _HEAD.pack(len(payload), crc32(payload), time.monotonic())
        os.pwrite(self._file, head + payload, self._index * SLOT_BYTES)

    def read_all(self) -> list[Reading]:
        """Return the readings of all workers; of dead ones only what they counted."""
        now = time.monotonic()
        found: list[Reading] = []
        for index in range(len(self._last_read)):
            snapshot = self._read(index)
            found += snapshot.readings if now - snapshot.at < STALE_S else drop_gauges(snapshot.readings)
        return found

    def _read(self, index: int) -> Snapshot:
        """Read a slot again if it was being written meanwhile; in the end, return its previous snapshot."""
        for _ in range(MAX_READS):
            snapshot = self._try_read(index)
            if snapshot is not None:
                self._last_read[index] = snapshot
                break
        return self._last_read[index]

    def _try_read(self, index: int) -> Snapshot | None:
        head = os.pread(self._file, _HEAD.size, index * SLOT_BYTES)
        if len(head) < _HEAD.size:
            return EMPTY
        length, checksum, at = _HEAD.unpack(head)
        payload = os.pread(self._file, length, index * SLOT_BYTES + _HEAD.size)
        if len(payload) != length or crc32(payload) != checksum:
            return None
        return Snapshot(at, _decode(payload)) if payload else EMPTY


LAG_INTERVAL_S = 0.5
PUBLISH_PAUSE = 50  # times as long as publishing took: thousands of series must not slow down requests
EXPORT_VARIABLES = tuple(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT" for signal in ("", "TRACES_", "METRICS_"))

STATM = Path("/proc/self/statm")
OPEN_FILES = (Path("/proc/self/fd"), Path("/dev/fd"))
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

ReadMetrics = Callable[[], Iterable[Reading]]


class MetricsRegistry:
    """All sources of metrics of one process."""

    def __init__(self, shared: SharedCounters | None = None, exporter: "Exporter | None" = None) -> None:
        self._requests = RequestMetrics(OPERATIONS)
        self._lag = Histogram(catalogue.LOOP_LAG)
        self._started = time.time()
        self._sources: list[ReadMetrics] = [self._requests.readings, self._process_readings, self._lag_readings]
        self._slot: WorkerSlot | None = None if shared is None else shared.claim_slot()
        self._exporter = exporter
        if exporter is not None:
            self.add_source(exporter.readings)
        self._task: asyncio.Task[None] | None = None
        self._scraping = asyncio.Lock()
        self._scrape_at = 0.0  # by the loop's clock: not before
        self._next_scrape: asyncio.Task[bytes] | None = None  # that has not begun
        self._warned = False

    def add_source(self, source: ReadMetrics) -> None:
        """Read this source at each scrape."""
        self._sources.append(source)

    @property
    def observers(self) -> list[OutcomeObserver]:
        observe = self._requests.observe
        return [observe] if self._exporter is None else [observe, self._exporter.observe]

    def start(self, address: "Address") -> None:
        """Start to measure, publish and export; `address` returns the host and port of a provider."""
        self._task = spawn(self._run(), name="metrics")
        if self._exporter is not None:
            self._exporter.start(address)

    async def stop(self) -> None:
        """Publish and export the last readings."""
        if self._task is not None:
            self._task.cancel()
        self._publish()
        if self._exporter is not None:
            self._exporter.offer(list(self.readings()))
            await asyncio.to_thread(self._exporter.stop)

    def readings(self) -> Iterator[Reading]:
        """Yield this process's own readings; a source that fails is skipped and logged."""
        for source in self._sources:
            try:
                yield from source()
            except Exception as bug:
                self._warn_once(f"some metrics are missing: {describe_fault(bug)}")

    async def scrape(self) -> bytes:
        """Return the readings of all workers in Prometheus's text format; who asks meanwhile shares the next answer.

        It needs no key: one answer at a time is written, with a pause after it.
        """
        if self._next_scrape is None:
            self._next_scrape = spawn(self._scrape_next(), name="scrape")
        return await asyncio.shield(self._next_scrape)

    async def _scrape_next(self) -> bytes:
        clock = asyncio.get_running_loop().time
        async with self._scraping:
            await asyncio.sleep(self._scrape_at - clock())
            self._next_scrape = None  # who asks from now on gets newer readings
            began = clock()
            try:
                return await self._render()
            finally:
                self._scrape_at = clock() + (clock() - began) * SCRAPE_PAUSE

    async def _render(self) -> bytes:
        """Return the readings of all workers.

        This process's own readings are read back from its slot, with the counters that it inherited, so that no
        counter decreases between two scrapes.
        """
        if self._slot is None or not self._publish():
            return await asyncio.to_thread(render_text, list(self.readings()))
        slot = self._slot
        return await asyncio.to_thread(lambda: render_text(slot.read_all()))

    def _publish(self) -> bool:
        if self._slot is None:
            return False
        try:
            self._slot.publish(self.readings())
        except OSError as error:
            self._warn_once(
                f"/metrics shows one worker only, because its readings cannot be shared: {describe_cause(error)}"
            )
            return False
        return True

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        export_at = clock() + (0.0 if self._exporter is None else self._exporter.interval_s)
        publish_at = 0.0
        while True:
            due = clock() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            now = clock()
            self._lag.add(max(0.0, now - due))
            if now >= publish_at:
                self._publish()
                publish_at = clock() + (clock() - now) * PUBLISH_PAUSE
            if self._exporter is not None and now >= export_at:
                export_at = now + self._exporter.interval_s
                self._exporter.offer(list(self.readings()))

    def _lag_readings(self) -> Iterator[Reading]:
        yield Reading(catalogue.LOOP_LAG.name, (), self._lag.values)

    def _process_readings(self) -> Iterator[Reading]:
        yield Reading(catalogue.WORKERS.name, (), (1,))
        yield Reading(catalogue.BUILD_INFO.name, (__version__, platform.python_version()), (1,))
        yield Reading(catalogue.START_TIME.name, (), (round(self._started, 3),))
        yield Reading(catalogue.MEMORY.name, (), (_resident_bytes(),))
        files = _count_open_files()
        if files is not None:
            yield Reading(catalogue.OPEN_FILES.name, (), (files,))

    def _warn_once(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("%s", message)


def make_registry(environ: Mapping[str, str], shared: SharedCounters | None = None) -> MetricsRegistry:
    """Make a registry that also exports to OpenTelemetry if its variables name a collector.

    The exporter's modules are imported only then.
    """
    if not any(environ.get(name) for name in EXPORT_VARIABLES):
        return MetricsRegistry(shared)
    from dragoman.operate.metrics.exporter import make_exporter

    return MetricsRegistry(shared, make_exporter(environ))


def _resident_bytes() -> int:
    try:
        return int(STATM.read_text().split()[1]) * PAGE_BYTES
    except OSError:  # not Linux: only the peak is known
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _count_open_files() -> int | None:
    for directory in OPEN_FILES:
        try:
            return len(os.listdir(directory)) - 1  # without the one that lists them
        except OSError:
            continue
    return None

"""Share the metrics of all workers, so that whichever worker is scraped can report the sum.

Each worker publishes its readings in its own slot of an anonymous file that is opened before the workers are forked: no
other process can open it, and it disappears with the last of them. A worker that takes over the slot of a dead one adds
that one's counters to its own, so that no counter ever decreases.
"""

import fcntl
import os
import struct
import time
from collections.abc import Iterable
from zlib import crc32

import msgspec

from dragoman.observers.metrics_text import Reading, drop_gauges, merge_readings

SLOT_BYTES = 16 * 1024 * 1024  # the file is sparse: only published bytes take up space
STALE_S = 10.0  # a worker that has published nothing for so long is dead
MAX_READS = 5

_HEAD = struct.Struct("<IId")  # length, checksum, time by the monotonic clock that all processes share
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Reading]).decode


class Snapshot(msgspec.Struct, frozen=True):
    """The readings of one worker at one time."""

    at: float
    readings: list[Reading]


EMPTY = Snapshot(0.0, [])


class SharedCounters:
    """The file, made by the parent process with one slot for each worker."""

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

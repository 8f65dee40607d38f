"""The meter of the processes on one SQLite file: one of them has it in memory, the others ask that one.

A lock on a file beside the store says which one it is, and the file where it listens. Of several workers of a gateway
the first one takes the lock. It waits while another gateway on the store has it, such as one whose port was taken over.
"""

import asyncio
import fcntl
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import tzinfo
from pathlib import Path

from msgspec import Struct

from dragoman.net.tasks import spawn_apart
from dragoman.store import Store
from dragoman.store.meter import Level, Operation, Result, Unavailable
from dragoman.tenancy.memory_meter import MemoryMeter
from dragoman.tenancy.meter_server import MeterServer
from dragoman.tenancy.remote_meter import RemoteMeter

LOCK_RETRY_S = 0.1
ALIVE_S = 1.0

log = logging.getLogger(__name__)


class MeterPlace(Struct, frozen=True):
    """Which of the workers of a gateway a process is."""

    worker: int = 0
    workers: int = 1
    directory: str = ""  # for sockets, that only this user can enter; empty: one is made


ALONE = MeterPlace()


def _ignore() -> None:
    return


class SharedMeter:
    """Asks the process that has the meter, or is that process."""

    is_out = False  # another worker of this machine is there again soon, and is asked each time
    processes = 1  # that count by themselves

    def __init__(self, store: Store, file: Path, zone: Callable[[], tzinfo], place: MeterPlace = ALONE) -> None:
        self.on_alive: Callable[[], None] = _ignore  # called each second while this process has the meter
        self._store = store
        self._file = file
        self._zone = zone
        self._may_have_it = place.worker == 0
        self._others = place.workers - 1
        self._directory = place.directory
        self._remote: RemoteMeter | None = RemoteMeter(self._find_address, secrets.token_hex(8))
        self._memory: MemoryMeter | None = None
        self._server: MeterServer | None = None
        self._lock: int | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def process(self) -> str:
        return self._meter.process

    @property
    def keeps_charges(self) -> bool:
        """Whether another process can write the rows of this one: not if this one has the meter."""
        return self._meter.keeps_charges

    @property
    def memory(self) -> MemoryMeter | None:
        """The meter itself, if this process has it."""
        return self._memory

    @property
    def drift(self) -> float | None:
        """By which part the rows differed at the last comparison; None if another process has the meter."""
        return None if self._memory is None else self._memory.drift

    async def apply(self, operations: Sequence[Operation]) -> Sequence[Result]:
        self.start()
        meter = self._meter
        results = await meter.apply(operations)
        if meter is self._meter:
            return results
        answered = zip(operations, results, strict=True)  # until this process has taken the meter over
        return [
            (await self._meter.apply([operation]))[0] if type(result) is Unavailable else result
            for operation, result in answered
        ]

    def post(self, operation: Operation) -> None:
        self.start()
        self._meter.post(operation)

    async def read(self, counters: Sequence[str]) -> Sequence[Level]:
        self.start()
        meter = self._meter
        levels = await meter.read(counters)
        return levels if levels or meter is self._meter else await self._meter.read(counters)

    def start(self) -> None:
        """Begin, unless this was called before: the first limit needs it."""
        if self._task is not None:
            return
        if self._may_have_it and self._take_lock():
            self._become_owner()
        elif self._remote is not None:
            self._remote.start()
        self._task = spawn_apart(self._run(), name="shared meter")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._remote is not None:
            await self._remote.stop()
        if self._server is not None:
            await self._server.stop()
        if self._memory is not None:
            await self._memory.stop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None  # its number may be another file's by the time this is called again

    @property
    def _meter(self) -> MemoryMeter | RemoteMeter:
        if self._memory is not None:
            return self._memory
        assert self._remote is not None
        return self._remote

    async def _run(self) -> None:
        while self._memory is None:
            assert self._remote is not None
            if not self._may_have_it:
                return
            await self._remote.disconnected.wait()
            if self._take_lock():
                await self._succeed(self._remote)
            else:
                await asyncio.sleep(LOCK_RETRY_S)
        await self._listen(self._memory)
        while True:
            self.on_alive()
            await asyncio.sleep(ALIVE_S)

    async def _succeed(self, remote: RemoteMeter) -> None:
        """Have the meter from now on, with the leases of this process and what was not acknowledged."""
        await remote.disconnect()
        self._remote = None
        memory = self._become_owner(remote.process)
        for operation in (*remote.list_announcements(), *remote.unacknowledged):
            memory.post(operation)
        remote.give_up()

    def _become_owner(self, process: str = "") -> MemoryMeter:
        memory = self._memory = MemoryMeter(self._store, self._zone, process=process)
        if self._others:
            memory.wait_for_others()
        memory.start()
        return memory

    async def _listen(self, memory: MemoryMeter) -> None:
        self._server = MeterServer(memory, self._others, self._directory)
        assert self._lock is not None
        try:
            await self._server.start()
        except OSError as error:
            log.error("other processes cannot ask this one for limits, and refuse their requests: %s", error)
            return
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, self._server.address.encode(), 0)

    def _take_lock(self) -> bool:
        """Return whether this process has the lock now, and keep it until the process ends."""
        try:
            lock = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            log.warning("%s cannot be opened, so that limits cannot be counted: %s", self._file, error)
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def _find_address(self) -> str | None:
        try:
            return self._file.read_text() or None
        except OSError:
            return None

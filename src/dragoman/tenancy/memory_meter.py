"""The meter in the memory of one process, which others may ask too (tenancy/meter_server.py)."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import tzinfo

from msgspec import Struct

from dragoman.net.tasks import spawn, spawn_apart
from dragoman.store import Store, StoreError
from dragoman.store.meter import (
    Level,
    Missing,
    Operation,
    Result,
    RowsWritten,
    Unavailable,
)
from dragoman.store.spending import AdjustmentWatch
from dragoman.tenancy.counters import Counters, Disturbed
from dragoman.tenancy.windows import find_spending, is_past, parse_counter, parse_window

SEED_WAIT_S = 2.0  # for which a request waits until it is known what was spent
ANNOUNCE_S = 1.0  # for which other processes may announce their leases before that is read
TICK_S = 1.0
WATCH_S = 5.0
MAX_SILENT = 6  # heartbeats: 30 s
COMPARE_S = 60.0
MAX_COMPARED = 200  # counters at a time
DRIFT = 0.01  # that is logged
TRIES = 5

log = logging.getLogger(__name__)


class MeterClocks(Struct, frozen=True):
    """Where a meter takes time from."""

    monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


CLOCKS = MeterClocks()


class MemoryMeter:
    """Counts for this process and for those that ask it. Without a store, nothing is known of the past."""

    keeps_charges = False
    is_out = False
    processes = 1

    def __init__(
        self, store: Store | None, zone: Callable[[], tzinfo], clocks: MeterClocks = CLOCKS, process: str = ""
    ) -> None:
        self.process = process or secrets.token_hex(8)
        self.counters = Counters(clocks.monotonic_ms, has_rows=store is not None)
        self.drift = 0.0  # the largest of the last comparison, of 1
        self._store = store
        self._zone = zone
        self._clocks = clocks
        self._used_zone: tzinfo | None = None
        self._comparing: dict[str, asyncio.Task[float]] = {}
        self._announcing = asyncio.Event()  # set when all other processes have announced their leases
        self._announcing.set()
        self._silent: dict[str, int] = {}  # other processes, and how many heartbeats they have missed
        self._adjustments = None if store is None else AdjustmentWatch(store, clocks.now_ms())
        self._task: asyncio.Task[None] | None = None

    # What the path of a call uses.

    async def apply(self, operations: Sequence[Operation]) -> Sequence[Result]:
        results: list[Result] = []
        for operation in operations:
            result = self.counters.apply(operation)
            results.append(await self.seed_and_apply(operation, result) if type(result) is Missing else result)
        return results

    def post(self, operation: Operation) -> None:
        self.counters.apply(operation)

    async def read(self, counters: Sequence[str]) -> Sequence[Level]:
        await self._seed([counter for counter in counters if self._can_seed(counter)])
        levels = (self.counters.read(counter) or Level(counter) for counter in counters)
        return tuple(levels)

    # What a server of other processes uses.

    def wait_for_others(self) -> None:
        """Read nothing that was spent until `end_waiting`, or for a second: others may have leases."""
        self._announcing.clear()
        asyncio.get_running_loop().call_later(ANNOUNCE_S, self._announcing.set)

    def end_waiting(self) -> None:
        self._announcing.set()

    def hear(self, process: str) -> None:
        """Note that another process is alive."""
        self._silent[process] = 0

    async def end_process(self, process: str) -> None:
        """Collect the leases of a process that is gone."""
        self._silent.pop(process, None)
        self.counters.collect(process)
        await self.write_lost_rows()

    # What happens by itself.

    def start(self) -> None:
        self._task = spawn_apart(self._run(), name="meter")

    async def stop(self) -> None:
        tasks = [task for task in (self._task, *self._comparing.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        watched = compared = clock()
        while True:
            await asyncio.sleep(TICK_S)
            await self.adopt_changes()
            if clock() - watched >= WATCH_S:
                watched = clock()
                await self.watch_processes()
            if clock() - compared >= COMPARE_S:
                compared = clock()
                self.tidy()
                await self.compare_with_rows()

    async def watch_processes(self) -> None:
        """Count a missed heartbeat for each other process, and collect those that have missed too many.

        What was missed while this process did not run either does not count.
        """
        for process in [*self._silent]:
            self._silent[process] += 1
            if self._silent[process] > MAX_SILENT:
                log.warning(
                    "a process of the gateway sent no heartbeat for %.0f s: its running requests are charged",
                    MAX_SILENT * WATCH_S,
                )
                await self.end_process(process)
        await self.write_lost_rows()

    async def write_lost_rows(self) -> None:
        """Write the rows of processes that are gone; those that cannot be written now are tried again.

        A process may have stored a row that it did not settle: the counters are compared with the rows afterwards.
        """
        collected = self.counters.collected
        for process in collected:
            found = [*self.counters.find_unwritten(process)]
            try:
                if self._store is not None:
                    await self._store.append_usage([row for _, row in found if row is not None])
            except StoreError as error:
                log.warning("the usage of a process that is gone cannot be stored now: %s", error)
                return
            self.counters.apply(RowsWritten(tuple(id for id, _ in found)))
        if collected:
            await self.compare_with_rows()

    async def adopt_changes(self) -> None:
        """Read again what was spent where the time zone was changed, or an adjustment was made or ended."""
        zone = self._zone()
        if zone != self._used_zone:
            self._used_zone = zone
            self.counters.forget_windows()
        if self._adjustments is None:
            return
        try:
            changed = await self._adjustments.find_changed(self._clocks.now_ms())
        except StoreError as error:
            log.debug("adjustments cannot be read now: %s", error)
            return
        for counter in [*self.counters.windows] if changed else ():
            name = parse_counter(counter)
            if (name.scope, name.unit) in changed:
                if counter in self._comparing:  # it may have read before the change
                    await self._comparing[counter]
                await self._begin_comparing(counter)

    def tidy(self) -> None:
        """Forget what is no longer requested."""
        zone, now_ms = self._zone(), self._clocks.now_ms()
        self.counters.tidy(lambda counter: is_past(counter, zone, now_ms))

    async def compare_with_rows(self) -> None:
        """Set the counters that were used to what the rows say."""
        drift = 0.0
        windows = self.counters.windows
        touched = [name for name, window in windows.items() if window.is_touched and window.is_known]
        for counter in touched[:MAX_COMPARED]:
            if counter not in windows:
                continue
            before = windows[counter].spent
            differs = await self._begin_comparing(counter)
            if differs > DRIFT and counter in windows:
                log.warning(
                    'the counter "%s" was %d; its usage rows add up to %d', counter, before, windows[counter].spent
                )
            drift = max(drift, differs)
        self.drift = drift

    # The past.

    async def seed_and_apply(self, operation: Operation, missing: Missing) -> Result:
        """Read what was spent, and apply an operation that could not be applied without."""
        await self._seed(missing.counters)
        result = self.counters.apply(operation)
        if isinstance(result, Missing):
            return Unavailable("it is not known yet what was spent")
        return result

    async def _seed(self, counters: Sequence[str]) -> None:
        """Read what was spent of counters that are not known, for at most SEED_WAIT_S."""
        tasks = [self._begin_comparing(counter) for counter in counters]
        if tasks:
            await asyncio.wait(tasks, timeout=SEED_WAIT_S)

    def _begin_comparing(self, counter: str) -> asyncio.Task[float]:
        """Compare a counter with the rows, unless that is going on."""
        if counter not in self._comparing:
            self._comparing[counter] = spawn(self._compare(counter), name="meter rows")
        return self._comparing[counter]

    async def _compare(self, counter: str) -> float:
        """Set what was spent of a counter to what the rows say; return by which part it differed."""
        try:
            await self._announcing.wait()
            for _ in range(TRIES):
                comparison = self.counters.begin_comparison(counter)
                rows = await self._read_rows(counter, comparison.leases)
                try:
                    before = self.counters.finish_comparison(counter, comparison, rows)
                except Disturbed:
                    continue
                window = self.counters.windows[counter]
                return 0.0 if before is None else abs(window.spent - before) / max(1, abs(window.spent), abs(before))
            return 0.0
        finally:
            del self._comparing[counter]

    async def _read_rows(self, counter: str, leases: tuple[str, ...]) -> int | None:
        """Return what the rows say; None if they cannot be read now."""
        if self._store is None:
            return 0
        query = find_spending(counter, self._zone(), self._clocks.now_ms(), leases)
        try:
            return await self._store.read_spending(query)
        except StoreError as error:
            log.warning('what was spent of "%s" cannot be read now: %s', counter, error)
            return None

    def _can_seed(self, counter: str) -> bool:
        window = self.counters.windows.get(counter)
        if window is not None:
            return not window.is_known
        try:
            name = parse_counter(counter)
            parse_window(name.window, self._zone())
        except ValueError:  # of a rate, or of slots
            return False
        return True

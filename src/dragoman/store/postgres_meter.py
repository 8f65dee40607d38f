"""The meter of several gateways: functions in PostgreSQL, called once in a loop turn for all that has come up."""

import asyncio
import logging
import secrets
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Sequence

import asyncpg
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.tasks import spawn, spawn_apart
from dragoman.store.database import Session, StoreError, fetch_among
from dragoman.store.meter import (
    ACKNOWLEDGED,
    Acknowledged,
    Admit,
    Admitted,
    Beat,
    Change,
    Gone,
    Hold,
    Level,
    Missing,
    Operation,
    Result,
    RowsWritten,
    Settle,
    Unavailable,
    charge_lease,
    has_row,
    make_lost_row,
)
from dragoman.store.postgres import DATABASE_ERRORS, PostgresDatabase, with_connection
from dragoman.store.spending import AdjustmentWatch, SpendingQuery, sum_spending
from dragoman.store.store import Store

DEADLINE_S = 2.0
LOCK_TIMEOUT = "1s"
MAX_MISSES = 3  # after which admissions are refused at once
PROBE_S = 1.0
RETRY_S = 0.05
BATCH = 200
TICK_S = 1.0
BEAT_S = 5.0
NAME_EVERY = 6  # heartbeats: all leases are named
MAX_SILENT = 6  # own heartbeats, without one of the other process
COMPARE_S = 60.0
MAX_COMPARED = 200
MAX_UNCOUNTED = 10_000
DRIFT = 0.01
RATE_KEPT_MS = 3_600_000

APPLY = "SELECT dragoman.meter_apply($1::jsonb)"
NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
READ = f"""
    SELECT counter, CASE WHEN level IS NULL THEN spent ELSE capacity
            - floor(dragoman.meter_fill(found, capacity, {NOW}) / 60000)::bigint END,
        reserved, running
    FROM dragoman.meter_counters AS found
    WHERE counter IN ({{among}}) AND (is_known OR level IS NOT NULL OR running > 0)
"""  # noqa: S608
ADD_COUNTER = "INSERT INTO dragoman.meter_counters (counter) VALUES ($1) ON CONFLICT DO NOTHING"
LOCK_COUNTER = "SELECT spent, is_known FROM dragoman.meter_counters WHERE counter = $1 FOR UPDATE"
LEASES_OF = """
    SELECT lease, coalesce((amounts ->> $1)::bigint, 0) FROM dragoman.meter_leases
    WHERE state < 2 AND (holds @> jsonb_build_array(jsonb_build_array($1::text)) OR amounts ? $1)
"""
SET_SPENT = "UPDATE dragoman.meter_counters SET spent = $2, is_known = TRUE, is_touched = FALSE WHERE counter = $1"
FORGET_SPENT = "UPDATE dragoman.meter_counters SET is_known = FALSE WHERE is_known"
KNOWN = "SELECT counter FROM dragoman.meter_counters WHERE is_known"
TOUCHED = "SELECT counter FROM dragoman.meter_counters WHERE is_known AND is_touched LIMIT $1"
IDLE = "SELECT counter FROM dragoman.meter_counters WHERE running = 0 AND level IS NULL"
REMOVE_IDLE = "DELETE FROM dragoman.meter_counters WHERE counter = $1 AND running = 0"
REMOVE_FULL = f"""
    DELETE FROM dragoman.meter_counters AS found WHERE running = 0 AND NOT is_known AND spent = 0
        AND at_ms < {NOW} - $1 AND coalesce(dragoman.meter_fill(found, capacity, {NOW}) >= capacity * 60000, TRUE)
"""  # noqa: S608
REMOVE_BARRED = f"DELETE FROM dragoman.meter_leases WHERE state = 2 AND at_ms < {NOW} - 60000"  # noqa: S608
REMOVE_PROCESSES = f"""
    DELETE FROM dragoman.meter_processes WHERE is_collected AND at_ms < {NOW} - 86400000
        AND NOT EXISTS (SELECT FROM dragoman.meter_leases AS held WHERE held.process = meter_processes.process)
"""  # noqa: S608
PROCESSES = "SELECT process, beats FROM dragoman.meter_processes WHERE NOT is_collected"
COLLECT = "UPDATE dragoman.meter_processes SET is_collected = TRUE WHERE process = $1 AND beats = $2"
LEAVE = """
    DELETE FROM dragoman.meter_processes WHERE process = $1 AND NOT EXISTS (
        SELECT FROM dragoman.meter_leases AS held WHERE held.process = meter_processes.process AND held.state < 2)
"""
LOST_LEASES = """
    SELECT lease, state, holds::text, amounts::text, charge, last_charge FROM dragoman.meter_leases
    WHERE state < 2 AND process IN (SELECT process FROM dragoman.meter_processes WHERE is_collected) LIMIT 500
"""

# What a database says to an operation that is wrong in itself.
REJECTIONS = (asyncpg.DataError, asyncpg.PLPGSQLError, asyncpg.IntegrityConstraintViolationError, msgspec.DecodeError)

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
_read_results = msgspec.json.Decoder(list[Result | Missing])
_read_holds = msgspec.json.Decoder(tuple[Hold, ...])
_read_amounts = msgspec.json.Decoder(dict[str, int])


class MeteredWindows(Struct, frozen=True):
    """What a meter has to know of the windows that counters are named by."""

    find_spending: Callable[[str], SpendingQuery]  # of a counter; raises ValueError for rates and slots
    is_past: Callable[[str], bool]
    zone: Callable[[], object]
    now_ms: Callable[[], int]


class _PendingCall(Struct):
    operation: Operation
    answered: "asyncio.Future[Result | Missing] | None"  # None: posted, so that it is repeated


class LostLease(Struct, frozen=True):
    """A lease of a process that was collected."""

    admit: Admit
    is_running: bool
    settle: Settle


class Compared(Struct, frozen=True):
    """What a counter said was spent, and what its rows say."""

    before: int = 0
    spent: int = 0

    @property
    def part(self) -> float:
        """By which part they differed."""
        return abs(self.spent - self.before) / max(1, abs(self.spent), abs(self.before))


UNCHANGED = Compared()


class PostgresMeter:
    """Counts in the database, for all gateways on it."""

    keeps_charges = True

    def __init__(self, store: Store, database: PostgresDatabase, windows: MeteredWindows) -> None:
        self.process = secrets.token_hex(8)
        self.drift: float | None = 0.0
        self._store = store
        self._database = database
        self._windows = windows
        self._pool: asyncpg.Pool | None = None
        self._pending: deque[_PendingCall] = deque()
        self._woken = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._misses = 0
        self._own: set[str] = set()  # leases of this process that are not written
        self._uncounted: dict[str, tuple[str, ...]] = {}  # leases that were never admitted, and their counters
        self._comparing: dict[str, asyncio.Task[Compared]] = {}
        self._adjustments = AdjustmentWatch(store, windows.now_ms())
        self._zone: object = None
        self._seen: dict[str, tuple[int, int]] = {}  # other processes: their beats, and for how many of ours
        self._tasks: list[asyncio.Task[None]] = []
        self._beats = 0

    @property
    def is_out(self) -> bool:
        """Whether the database has not answered for a while, so that admissions are refused at once."""
        return self._misses >= MAX_MISSES

    @property
    def processes(self) -> int:
        """How many live, as far as this one knows."""
        return 1 + len(self._seen)

    # What the path of a call uses.

    async def apply(self, operations: Sequence[Operation]) -> Sequence[Result]:
        self.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                if operations and isinstance(operations[0], Admit):  # the next one may end its lease
                    return [await self._apply_one(operation) for operation in operations]
                return await asyncio.gather(*map(self._apply_one, operations))
        except TimeoutError:
            return [Unavailable(f"{self._database.name} did not answer in time")] * len(operations)

    def post(self, operation: Operation) -> None:
        self.start()
        self._pending.append(_PendingCall(operation, None))
        self._all_sent.clear()
        self._woken.set()

    async def read(self, counters: Sequence[str]) -> Sequence[Level]:
        async def read_levels(session: Session) -> list[Level]:
            return await fetch_among(session, Level, READ, counters)

        try:
            async with asyncio.timeout(DEADLINE_S):
                levels = {level.counter: level for level in await self._store.database.read(read_levels)}
                unknown = [counter for counter in counters if counter not in levels and self._is_window(counter)]
                if unknown:
                    await asyncio.gather(*map(self._begin_comparing, unknown))
                    levels = {level.counter: level for level in await self._store.database.read(read_levels)}
        except (StoreError, TimeoutError) as error:
            log.debug("limits cannot be read now: %s", error)
            return ()
        return tuple(levels.get(counter, Level(counter)) for counter in counters)

    def _is_window(self, counter: str) -> bool:
        try:
            self._windows.find_spending(counter)
        except ValueError:
            return False
        return True

    # Calls of the function.

    async def _ask(self, operation: Operation) -> Result | Missing:
        if self.is_out and isinstance(operation, (Admit, Change)):
            return Unavailable(f"{self._database.name} does not answer")
        pending = _PendingCall(operation, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._woken.set()
        assert pending.answered is not None
        return await pending.answered

    async def _apply_one(self, operation: Operation) -> Result:
        result = await self._ask(operation)
        if not isinstance(result, Missing):
            return result
        await asyncio.gather(*map(self._begin_comparing, result.counters))
        result = await self._ask(operation)
        return Unavailable("it is not known yet what was spent") if isinstance(result, Missing) else result

    async def _call_forever(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            self._all_sent.clear()
            while self._pending:
                batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
                batch = [pending for pending in batch if pending.answered is None or not pending.answered.done()]
                if not await self._call(batch):
                    await asyncio.sleep(PROBE_S if self.is_out else RETRY_S)
            if not self._woken.is_set():
                self._all_sent.set()

    async def _call(self, batch: Sequence[_PendingCall]) -> bool:
        """Apply operations in one call. If it fails, those that were posted are put back.

        One that the database rejects for what it is would be rejected again: it is found and dropped.
        """
        try:
            async with asyncio.timeout(DEADLINE_S):
                results = await self._fetch([pending.operation for pending in batch])
        except REJECTIONS as error:
            if len(batch) > 1:
                return all([await self._call([pending]) for pending in batch])
            log.error("%s rejected %s: %s", self._database.name, batch[0].operation, self._database.describe(error))
            if batch[0].answered is not None and not batch[0].answered.done():
                batch[0].answered.set_result(Unavailable(f"{self._database.name} rejected it"))
            return True
        except (TimeoutError, StoreError, *DATABASE_ERRORS) as error:
            self._record_miss(error)
            self._pending.extendleft(pending for pending in reversed(batch) if pending.answered is None)
            for pending in batch:
                if pending.answered is not None and not pending.answered.done():
                    pending.answered.set_result(Unavailable(f"{self._database.name} did not answer"))
            return False
        if self._misses:
            log.info("%s answers again", self._database.name)
            self._misses = 0
        for pending, result in zip(batch, results, strict=True):
            self._record(pending.operation, result)
            if pending.answered is not None and not pending.answered.done():
                pending.answered.set_result(result)
        return True

    async def _fetch(self, operations: Sequence[Operation]) -> list[Result | Missing]:
        if self._pool is None:
            await self._store.open()
            self._pool = await self._database.connect(1, {"lock_timeout": LOCK_TIMEOUT})
        text = _encode(operations).decode()
        found: str = await with_connection(self._pool, lambda connection: connection.fetchval(APPLY, text))
        return _read_results.decode(found)

    def _record_miss(self, error: Exception) -> None:
        self._misses += 1
        if self._misses == 1:
            log.warning("limits cannot be counted now (%s): %s", self._database.name, self._database.describe(error))

    def _record(self, operation: Operation, result: Result | Missing) -> None:
        """Note which leases this process has."""
        match operation, result:
            case Admit(lease), Admitted():
                self._own.add(lease)
            case Settle(lease, amounts), _ if isinstance(result, Gone) or not has_row(operation):
                self._own.discard(lease)
                if has_row(operation):  # it is counted with its row
                    if len(self._uncounted) >= MAX_UNCOUNTED:
                        del self._uncounted[next(iter(self._uncounted))]
                    self._uncounted[lease] = tuple(filter(self._is_window, amounts))
            case RowsWritten(leases), _:
                self._own.difference_update(leases)
                for counters in [self._uncounted.pop(lease) for lease in leases if lease in self._uncounted]:
                    for counter in counters:
                        self._begin_comparing(counter, is_known=True)
            case Beat(process), Gone() if process == self.process:
                log.warning("this process sent no heartbeat for too long: its running requests were charged")
                self.process = secrets.token_hex(8)
                self._own.clear()
                self.post(Beat(self.process, ()))

    # What happens by itself.

    def start(self) -> None:
        """Begin, unless this was called before: the first limit needs it."""
        if self._tasks:
            return
        self._tasks = [
            spawn_apart(self._call_forever(), name="meter calls"),
            spawn_apart(self._watch_forever(), name="meter"),
        ]
        self.post(Beat(self.process, ()))

    async def stop(self) -> None:
        """Send what was posted, and be no longer watched, if the database answers in time."""
        if not self._tasks:
            return
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._all_sent.wait()
                await self._store.database.write(self._leave)
        except StoreError as error:
            log.debug("other gateways do not know that this process ends: %s", error)
        except TimeoutError:
            log.warning("%d settlements could not be sent to %s", len(self._pending), self._database.name)
        tasks = [*self._tasks, *self._comparing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._pool is not None:
            self._pool.terminate()

    async def _leave(self, session: Session) -> None:
        await session.execute(LEAVE, self.process)

    async def _watch_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        beaten = compared = clock()
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.adopt_changes()
                if clock() - beaten >= BEAT_S:
                    beaten = clock()
                    await self.watch_processes()
                if clock() - compared >= COMPARE_S:
                    compared = clock()
                    await self.tidy()
                    await self.compare_with_rows()
            except StoreError as error:
                log.debug("the meter cannot be maintained now: %s", error)

    async def watch_processes(self) -> None:
        """Send a heartbeat, and collect processes that have sent none for six of ours."""
        self._beats += 1
        beat = Beat(self.process, tuple(self._own) if self._beats % NAME_EVERY == 0 else None)
        [result] = await self.apply([beat])
        if not isinstance(result, Acknowledged):
            return
        found = dict(await self._store.database.read(_read_processes))
        self._seen = {
            process: (beats, self._seen[process][1] + 1 if self._seen.get(process, (-1, 0))[0] == beats else 0)
            for process, beats in found.items()
            if process != self.process
        }
        for process, (beats, silent) in self._seen.items():
            if silent >= MAX_SILENT:
                log.warning(
                    "a process sent no heartbeat for %.0f s: its running requests are charged", MAX_SILENT * BEAT_S
                )
                await self.end_process(process, beats)
        await self.write_lost_rows()

    async def end_process(self, process: str, beats: int) -> None:
        """Collect the leases of a process that has sent no more heartbeats than these."""

        async def collect(session: Session) -> int:
            return await session.execute(COLLECT, process, beats)

        if await self._store.database.write(collect):
            await self.write_lost_rows()

    async def write_lost_rows(self) -> None:
        """Charge and write what processes had that were collected.

        A process may have stored a row that it did not settle: the counters are compared with the rows afterwards.
        """
        has_written = False
        while found := await self._store.database.read(_read_lost):
            running = [charge_lease(lost.admit, lost.admit.holds) for lost in found if lost.is_running]
            if running:
                results = await self.apply(running)
                if any(isinstance(result, Unavailable) for result in results):
                    return
                continue
            rows = [make_lost_row(lost.admit, lost.settle) for lost in found]
            await self._store.append_usage([row for row in rows if row is not None])
            results = await self.apply([RowsWritten(tuple(lost.admit.lease for lost in found))])
            if results != [ACKNOWLEDGED]:
                return
            has_written = True
        if has_written:
            await self.compare_with_rows()

    async def adopt_changes(self) -> None:
        """Read again what was spent where the time zone was changed, or an adjustment was made or ended."""
        zone = self._windows.zone()
        if self._zone is not None and zone != self._zone:
            await self._store.database.write(_forget_spent)
        self._zone = zone
        changed = await self._adjustments.find_changed(self._windows.now_ms())
        if not changed:
            return
        for counter in await self._store.database.read(_list_known):
            query = self._windows.find_spending(counter)
            if (query.scope, query.unit) in changed:
                await self._compare(counter)

    async def compare_with_rows(self) -> None:
        """Set the counters that were used to what the rows say."""
        drift = 0.0
        for counter in await self._store.database.read(_list_touched):
            found = await self._begin_comparing(counter, is_known=True)
            if found.part > DRIFT:
                log.warning('the counter "%s" was %d; its usage rows add up to %d', counter, found.before, found.spent)
            drift = max(drift, found.part)
        self.drift = drift

    async def tidy(self) -> None:
        """Remove what is no longer requested."""
        idle = [counter for counter in await self._store.database.read(_list_idle) if self._windows.is_past(counter)]

        async def remove(session: Session) -> None:
            await session.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            await session.execute(REMOVE_BARRED)
            await session.execute_many(REMOVE_IDLE, [(counter,) for counter in sorted(idle)])
            await session.execute(REMOVE_FULL, RATE_KEPT_MS)
            await session.execute(REMOVE_PROCESSES)

        await self._store.database.write(remove)

    # The past.

    def _begin_comparing(self, counter: str, is_known: bool = False) -> "asyncio.Task[Compared]":
        """Compare a counter with the rows, unless that is going on; if it need not be known, only if it is not."""
        if counter not in self._comparing:
            task = self._comparing[counter] = spawn(self._compare(counter, is_known=is_known), name="meter rows")
            task.add_done_callback(lambda _: self._comparing.pop(counter, None))
        return self._comparing[counter]

    async def _compare(self, counter: str, *, is_known: bool = True) -> Compared:
        """Set what was spent of a counter to what the rows say; return what it was and is."""

        async def compare(session: Session) -> Compared:
            await session.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            await session.execute(ADD_COUNTER, counter)
            [(before, was_known)] = await session.fetch(_make_spent, LOCK_COUNTER, counter)
            if was_known and not is_known:
                return UNCHANGED  # another process has just done it
            # The leases first: a row that is written after this is left out by its lease.
            leases = await session.fetch(_make_unwritten, LEASES_OF, counter)
            query = replace(self._windows.find_spending(counter), leases=tuple(lease for lease, _ in leases))
            spent = await sum_spending(session, query) + sum(amount for _, amount in leases)
            await session.execute(SET_SPENT, counter, spent)
            return Compared(before, spent) if was_known else UNCHANGED

        try:
            return await self._store.database.write(compare)
        except StoreError as error:
            log.warning('what was spent of "%s" cannot be read now: %s', counter, error)
            return UNCHANGED


async def _read_processes(session: Session) -> list[tuple[str, int]]:
    return await session.fetch(_make_unwritten, PROCESSES)


async def _read_lost(session: Session) -> list[LostLease]:
    return await session.fetch(_make_lost, LOST_LEASES)


async def _forget_spent(session: Session) -> None:
    await session.execute(FORGET_SPENT)


async def _list_known(session: Session) -> list[str]:
    return await session.fetch(str, KNOWN)


async def _list_touched(session: Session) -> list[str]:
    return await session.fetch(str, TOUCHED, MAX_COMPARED)


async def _list_idle(session: Session) -> list[str]:
    return await session.fetch(str, IDLE)


def _make_spent(spent: int, is_known: bool) -> tuple[int, bool]:
    return spent, is_known


def _make_unwritten(name: str, amount: int) -> tuple[str, int]:
    return name, amount


def _make_lost(lease: str, state: int, holds: str, amounts: str, charge: str, last_charge: str) -> LostLease:
    admit = Admit(lease, "", _read_holds.decode(holds), charge=b64decode(charge))
    return LostLease(admit, state == 0, Settle(lease, _read_amounts.decode(amounts), b64decode(last_charge)))

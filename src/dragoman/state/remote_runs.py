"""The runs of other replicas that clients get here, as runs of this process that are read from the shared state."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec import Struct

from dragoman.net.tasks import spawn
from dragoman.state.parked_run import ParkedRun, RunOrigin
from dragoman.state.run_index import RunIndex
from dragoman.store.shared_runs import Absence, SharedRun, SharedRuns
from dragoman.translate.hub.failure import Failure, Kind, RequestError

READS_AT_ONCE = 4  # each has at most 256 KB
POLL_S = 1.0  # how soon a run is read again without news of it
RETRY_S = 0.2  # how soon if it could not be read
GONE_S = 6.0  # for which a run that is not found may be added again, after the shared state has lost it
OUT_S = 10.0  # for which the shared state may be silent
GONE = Failure(
    Kind.SHUTDOWN,
    "The replica that made this reply ended, and the rest is lost. It is safe to send the request again: nothing else "
    "makes its reply now. The upstream is asked, and paid, again.",
    code="run_lost",
    should_retry=True,
)
SILENT = Failure(
    Kind.SHUTDOWN,
    "The shared state, through which this reply came from another replica, does not answer. The reply may still be "
    "made there: resume it, or send the request again with its Idempotency-Key, once store.shared answers. It is not "
    "safe to send the request again without the key: it may be paid for twice.",
    code="shared_state_out",
    should_retry=False,
)
OUTGROWN = Failure(
    Kind.SHUTDOWN,
    "This reply has become too large to be kept for others than the client that it is made for, so the rest cannot be "
    "sent here. It is not safe to send the request again: it may still be made, and be paid for twice.",
    code="run_not_shared",
    should_retry=False,
)
LOSSES = (GONE, SILENT, OUTGROWN)


class _Reading(Struct, eq=False):
    """How far a run was read."""

    run: ParkedRun
    woken: asyncio.Event
    made: bytes = b""
    place: int = 0  # the next piece
    seen: int = 0  # the bytes of the body before that piece
    size: int = 0  # the bytes of the body that the run has: more than were seen if it was added again
    failing_since: float | None = None  # since when it is not found, or the shared state does not answer
    failure: Failure | None = None  # which of these

    def add(self, found: SharedRun) -> None:
        """Add what was read to the run."""
        run = self.run
        if self.made and found.made != self.made:  # it is read again from its start
            self.place = self.seen = 0
            self.made = found.made
            return
        self.made = found.made
        self.place += len(found.pieces)
        if found.head is not None and not run.status:
            headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found.head.headers]
            run.begin(found.head.status, headers)
        for piece in found.pieces:
            fresh = piece[self.size - self.seen :]
            self.seen += len(piece)
            if fresh:
                self.size += len(fresh)
                run.add(fresh)
        if found.signs > run.signs:
            run.record_sign(found.sign, found.signs)
        if found.end is not None:
            run.failure = found.end.failure
            run.end(whole=found.end.is_whole)


class RemoteRuns:
    """The runs of other replicas that clients get here. Each is read once, and as long as it has clients."""

    def __init__(self, shared: SharedRuns, index: RunIndex) -> None:
        self._shared = shared
        self._index = index
        self._readings: dict[str, _Reading] = {}
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._clock = asyncio.get_running_loop().time

    def start(self, on_gap: Callable[[], None]) -> None:
        """Listen to news; `on_gap` is called where some may have been missed."""

        def read_all() -> None:
            for reading in self._readings.values():
                reading.woken.set()
            on_gap()

        self._shared.listen(self._wake, read_all)

    async def find(self, id: str, owner: str, path: str) -> ParkedRun | None:
        """Return a run of another replica; None if the owner has none with this id and path.

        Raises RequestError if the shared state does not answer.
        """
        found = await self._shared.read(id, 0)
        if found is None:
            message = "The shared state does not answer, so it is not known which replica has this run. Retry in 1 s."
            raise RequestError(Failure(Kind.OVERLOADED, message, code="shared_state_out", retry_after=1.0))
        if isinstance(found, Absence) or (found.card.owner, found.card.path) != (owner, path):
            return None
        known = self._index.find(id)  # meanwhile, for another client
        if known is not None:
            return known
        card = found.card
        run = self.join(
            id, RunOrigin(owner, path, card.digest, None, "cancel"), card.model, wants_array=card.wants_array
        )
        self._add(self._readings[id], found)
        return run

    def join(self, id: str, origin: RunOrigin, model: str, *, wants_array: bool) -> ParkedRun:
        """Return the run of another replica that a request of this origin gets; it is read from now on."""
        run = ParkedRun(0, origin)
        run.id, run.model, run.wants_array = id, model, wants_array
        run.is_remote = run.is_taken = True
        run.clients = 0
        reading = self._readings[id] = _Reading(run, asyncio.Event())
        self._index.add(run)
        task = spawn(self._read(reading), name="read a run of another replica")
        run.stop = partial(self._stop, reading, task)
        return run

    def record_left(self, run: ParkedRun) -> None:
        """Note that a client of a run has left; after the last one it is read no more."""
        if run.is_delivered:
            spawn(self._shared.take(run.id), name="report a run that was delivered")
        if not run.clients:
            run.stop()

    def _stop(self, reading: _Reading, task: "asyncio.Task[None]") -> None:
        self._remove(reading)
        task.cancel()

    def _remove(self, reading: _Reading) -> None:
        if self._readings.get(reading.run.id) is reading:
            del self._readings[reading.run.id]
        run = reading.run
        if not run.is_done:
            run.failure = SILENT
            run.end(whole=False)
        run.release()
        self._index.remove(run)

    async def _read(self, reading: _Reading) -> None:
        run = reading.run
        try:
            while not run.is_done and run.is_resumable:
                reading.woken.clear()
                wait_s = await self._read_once(reading)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await reading.woken.wait()
        finally:
            self._remove(reading)

    async def _read_once(self, reading: _Reading) -> float:
        """Read what is there; return after how many seconds to read again, unless there is news of the run."""
        async with self._reads:
            found = await self._shared.read(reading.run.id, reading.place)
        if isinstance(found, SharedRun):
            reading.failing_since = None
            self._add(reading, found)
            return POLL_S if found.is_read and not reading.run.is_done else 0.0
        failure, patience_s = _judge(found)
        if not patience_s:
            reading.run.failure = failure
            reading.run.end(whole=False)
            return 0.0
        if reading.failure is not failure or reading.failing_since is None:
            reading.failure, reading.failing_since = failure, self._clock()
        elif self._clock() - reading.failing_since > patience_s:
            reading.run.failure = failure
            reading.run.end(whole=False)
            return 0.0
        return RETRY_S

    def _add(self, reading: _Reading, found: SharedRun) -> None:
        run = reading.run
        before = run.size
        reading.add(found)
        self._index.record_growth(run, run.size - before)

    def _wake(self, id: str) -> None:
        reading = self._readings.get(id)
        if reading is not None:
            reading.woken.set()


def _judge(found: Absence | None) -> tuple[Failure, float]:
    """Return why a run cannot be read, and for how long it may be so before its clients learn it."""
    match found:
        case None:
            return SILENT, OUT_S
        case Absence.UNKNOWN:
            return GONE, GONE_S
        case Absence.FULL:
            return OUTGROWN, 0.0

"""What a process may use of rates and slots by itself, while what counts them for all of several does not answer."""

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from dragoman.config.limits import LimitName
from dragoman.store.meter import Admitted, Hold, HoldKind, Level, Refused, Result
from dragoman.tenancy.counters import SLOT_WAIT_MS
from dragoman.tenancy.rates import UNITS, Bucket, count_left, fill, find_wait_ms, make_bucket, take

SHARED_LIMITS = (LimitName.REQUESTS_PER_MIN, LimitName.TOKENS_PER_MIN, LimitName.CONCURRENT)
SHARED_KINDS = (HoldKind.RATE, HoldKind.SLOT)
MAX_BUCKETS = 10_000
KNOWN_S = 5.0  # for which it counts how many slots were left


class ProcessShare:
    """What one of several processes may use of rates and slots by itself: an equal part of each limit, rounded up."""

    def __init__(self, count_processes: Callable[[], int], running: Mapping[str, int]) -> None:
        """`count_processes` returns how many live; `running` has the slots of this process, by counter."""
        self._count_processes = count_processes
        self._running = running
        self._buckets: dict[str, Bucket] = {}
        self._most_running: dict[str, tuple[int, float]] = {}  # slots that this process may have, and until when
        self._owed: dict[str, tuple[Hold, int]] = {}  # what it took of rates, unknown to the server

    def take(self, holds: Sequence[Hold]) -> Admitted | Refused:
        """Take all, or nothing."""
        for place, hold in enumerate(holds):
            refused = self._find_refusal(place, hold)
            if refused is not None:
                return refused
        remaining = []
        for hold in holds:
            share = self._find_share(hold.limit)
            if hold.kind == HoldKind.SLOT:
                remaining.append(share - self._running.get(hold.counter, 0) - 1)
            else:
                bucket = self._fill(hold)
                take(bucket, hold.amount)
                remaining.append(count_left(bucket))
        return Admitted(tuple(remaining))

    def limit_to(self, holds: Sequence[Hold], found: Result) -> None:
        """Leave no more than this process's part of what the server says is left."""
        match found:
            case Admitted(remaining):
                left = zip(holds, remaining, strict=True)
            case Refused(place, spent) if holds[place].limit:
                left = zip((holds[place],), (holds[place].limit - spent,), strict=True)
            case _:
                return
        for hold, whole in left:
            if hold.kind == HoldKind.RATE:
                bucket = self._fill(hold)
                bucket.level = min(bucket.level, whole * UNITS // self._count_processes())
            else:
                most = self._running.get(hold.counter, 0) + max(0, self._find_share(whole))
                if len(self._most_running) >= MAX_BUCKETS:
                    self._most_running.clear()
                self._most_running[hold.counter] = (most, time.monotonic() + KNOWN_S)

    def give_back(self, holds: Sequence[Hold]) -> None:
        """Undo a take."""
        for hold in holds:
            if hold.kind == HoldKind.RATE:
                take(self._fill(hold), -hold.amount)

    def owe(self, holds: Sequence[Hold]) -> None:
        """Note that the server does not know what was taken of these rates."""
        for hold in holds:
            if hold.kind == HoldKind.RATE and (hold.counter in self._owed or len(self._owed) < MAX_BUCKETS):
                _, before = self._owed.get(hold.counter, (hold, 0))
                self._owed[hold.counter] = (hold, before + hold.amount)

    def collect_owed(self) -> list[Hold]:
        """Return what is to be charged to rates at the server: less what has refilled since."""
        owed, self._owed = self._owed, {}
        holds = []
        for hold, amount in owed.values():
            missing = self._find_share(hold.limit) - count_left(self._fill(hold))
            if min(amount, missing) > 0:
                holds.append(replace(hold, amount=min(amount, missing)))
        return holds

    def correct(self, counter: str, amount: int) -> None:
        """Take more of a rate, or give back, for what was taken here."""
        if counter in self._buckets:
            take(self._buckets[counter], amount)
        if counter in self._owed:
            hold, before = self._owed[counter]
            self._owed[counter] = (hold, before + amount)

    def read(self, counter: str) -> Level:
        """Return how a counter stands in this process alone."""
        return Level(counter, running=self._running.get(counter, 0))

    def _find_refusal(self, place: int, hold: Hold) -> Refused | None:
        share = self._find_share(hold.limit)
        if not share:
            return Refused(place, is_spent=True)
        if hold.kind == HoldKind.SLOT:
            running = self._running.get(hold.counter, 0)
            most, until = self._most_running.get(hold.counter, (share, 0.0))
            if time.monotonic() < until:
                share = min(share, most)
            return Refused(place, running, wait_ms=SLOT_WAIT_MS) if running >= share else None
        bucket = self._fill(hold)
        wait_ms = find_wait_ms(bucket, share, hold.amount)
        return Refused(place, share - count_left(bucket), wait_ms=wait_ms) if wait_ms else None

    def _find_share(self, limit: int) -> int:
        return -(-limit // self._count_processes())

    def _fill(self, hold: Hold) -> Bucket:
        share, now_ms = self._find_share(hold.limit), time.monotonic_ns() // 1_000_000
        bucket = self._buckets.get(hold.counter)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[hold.counter] = make_bucket(share, now_ms)
        fill(bucket, share, now_ms)
        return bucket


def is_shared(counter: str) -> bool:
    """Return whether a counter is of a rate or slots."""
    return counter.rpartition(":")[2] in SHARED_LIMITS


def split_holds(holds: Sequence[Hold]) -> tuple[tuple[Hold, ...], tuple[Hold, ...]]:
    """Return rates and slots, and windows."""
    shared = tuple(hold for hold in holds if hold.kind in SHARED_KINDS)
    return shared, tuple(hold for hold in holds if hold.kind not in SHARED_KINDS)


def find_place(result: Result, holds: Sequence[Hold], part: Sequence[Hold]) -> Result:
    """Return a refusal with the place of its hold among all."""
    return replace(result, hold=holds.index(part[result.hold])) if isinstance(result, Refused) else result

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


class ProcessShare:
    """What one of several processes may use of rates and slots by itself: an equal part of each limit, rounded up."""

    def __init__(self, count_processes: Callable[[], int], running: Mapping[str, int]) -> None:
        """`count_processes` returns how many live; `running` has the slots of this process, by counter."""
        self._count_processes = count_processes
        self._running = running
        self._buckets: dict[str, Bucket] = {}

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
        """Leave no more of rates than this process's part of what the server says is left of them all."""
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

    def correct(self, counter: str, amount: int) -> None:
        """Take more of a rate, or give back."""
        if counter in self._buckets:
            take(self._buckets[counter], amount)

    def read(self, counter: str) -> Level:
        """Return how a counter stands in this process alone."""
        return Level(counter, running=self._running.get(counter, 0))

    def _find_refusal(self, place: int, hold: Hold) -> Refused | None:
        share = self._find_share(hold.limit)
        if not share:
            return Refused(place, is_spent=True)
        if hold.kind == HoldKind.SLOT:
            running = self._running.get(hold.counter, 0)
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

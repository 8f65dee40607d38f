"""Two meters as one: rates and slots are counted in Valkey, windows where they are without it.

What a request takes of rates and slots is taken first, and given back if its windows have no room. While Valkey is out,
this process counts them by itself, within its share of each limit.
"""

import time
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.limits import LimitName
from dragoman.store.meter import (
    ACKNOWLEDGED,
    GONE,
    Admit,
    Admitted,
    Announce,
    Beat,
    Change,
    Correct,
    Hold,
    HoldKind,
    Level,
    Operation,
    Refused,
    Result,
    RowsWritten,
    Settle,
    Unavailable,
)
from dragoman.store.valkey import SharedStateError
from dragoman.store.valkey_meter import ValkeyMeter
from dragoman.tenancy.counters import SLOT_WAIT_MS
from dragoman.tenancy.opened_meter import RunningMeter
from dragoman.tenancy.rates import UNITS, Bucket, count_left, fill, find_wait_ms, make_bucket, take

SHARED_LIMITS = (LimitName.REQUESTS_PER_MIN, LimitName.TOKENS_PER_MIN, LimitName.CONCURRENT)
SHARED_KINDS = (HoldKind.RATE, HoldKind.SLOT)
MAX_BUCKETS = 10_000


class ProcessShare:
    """What one of several processes may use of rates and slots by itself: an equal part of each limit, rounded up."""

    def __init__(self, shared: ValkeyMeter) -> None:
        self._shared = shared
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
                remaining.append(share - self._shared.running.get(hold.counter, 0) - 1)
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
                bucket.level = min(bucket.level, whole * UNITS // self._shared.processes)

    def correct(self, counter: str, amount: int) -> None:
        """Take more of a rate, or give back."""
        if counter in self._buckets:
            take(self._buckets[counter], amount)

    def read(self, counter: str) -> Level:
        """Return how a counter stands in this process alone."""
        return Level(counter, running=self._shared.running.get(counter, 0))

    def _find_refusal(self, place: int, hold: Hold) -> Refused | None:
        share = self._find_share(hold.limit)
        if not share:
            return Refused(place, is_spent=True)
        if hold.kind == HoldKind.SLOT:
            running = self._shared.running.get(hold.counter, 0)
            return Refused(place, running, wait_ms=SLOT_WAIT_MS) if running >= share else None
        bucket = self._fill(hold)
        wait_ms = find_wait_ms(bucket, share, hold.amount)
        return Refused(place, share - count_left(bucket), wait_ms=wait_ms) if wait_ms else None

    def _find_share(self, limit: int) -> int:
        return -(-limit // self._shared.processes)

    def _fill(self, hold: Hold) -> Bucket:
        share, now_ms = self._find_share(hold.limit), time.monotonic_ns() // 1_000_000
        bucket = self._buckets.get(hold.counter)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[hold.counter] = make_bucket(share, now_ms)
        fill(bucket, share, now_ms)
        return bucket


class _OwnLease(Struct):
    """A lease of this process that runs."""

    windows: Admit  # what the other meter is asked for
    rates: dict[str, int]  # what it took of them
    has_windows: bool = False  # the other meter was asked
    is_by_share: bool = False  # some of it was taken of the share of this process


class PairedMeter:
    """Rates and slots in Valkey, windows in another meter, which decides about leases and their rows."""

    def __init__(self, shared: ValkeyMeter, windows: RunningMeter) -> None:
        self.windows = windows
        self.shared = shared
        self._share = ProcessShare(shared)
        self._leases: dict[str, _OwnLease] = {}

    @property
    def process(self) -> str:
        return self.windows.process

    @property
    def keeps_charges(self) -> bool:
        return self.windows.keeps_charges

    @property
    def drift(self) -> float | None:
        return self.windows.drift

    @property
    def is_out(self) -> bool:
        return self.windows.is_out

    async def apply(self, operations: Sequence[Operation]) -> Sequence[Result]:
        self.start()
        return [await self._apply(operation) for operation in operations]

    def post(self, operation: Operation) -> None:
        self.start()
        if not isinstance(operation, Settle):
            self.windows.post(operation)
            return
        own = self._forget(operation)
        self.shared.settle(operation.lease, _list_rates(operation))
        if own is None or own.has_windows:
            self.windows.post(_without_rates(operation))

    async def read(self, counters: Sequence[str]) -> Sequence[Level]:
        shared = [counter for counter in counters if _is_shared(counter)]
        windows = [counter for counter in counters if not _is_shared(counter)]
        try:
            found = await self.shared.read(shared)
        except SharedStateError:
            found = [self._share.read(counter) for counter in shared]
        levels = {level.counter: level for level in (*found, *(await self.windows.read(windows) if windows else ()))}
        return tuple(levels[counter] for counter in counters) if len(levels) == len({*counters}) else ()

    def start(self) -> None:
        self.shared.start()
        self.windows.start()

    async def stop(self) -> None:
        await self.windows.stop()
        await self.shared.stop()

    async def _apply(self, operation: Operation) -> Result:
        match operation:
            case Admit():
                return await self._admit(operation)
            case Change():
                return await self._change(operation)
            case Settle():
                own = self._forget(operation)
                await self.shared.end(operation.lease, _list_rates(operation))
                if own is None or own.has_windows:
                    return (await self.windows.apply([_without_rates(operation)]))[0]
                return ACKNOWLEDGED
            case Correct() | RowsWritten() | Beat() | Announce():
                return (await self.windows.apply([operation]))[0]

    async def _admit(self, admit: Admit) -> Result:
        shared, windows = _split(admit.holds)
        own = self._leases.get(admit.lease) or _OwnLease(replace(admit, holds=windows), {})
        first: Result = Admitted()
        if shared:
            first = await self._take(admit.lease, shared, own, is_new=True)
        if not isinstance(first, Admitted):
            return _find_place(first, admit.holds, shared)
        self._leases[admit.lease] = own
        if not windows:
            return first
        own.has_windows = True
        [second] = await self.windows.apply([own.windows])
        if isinstance(second, Admitted):
            return _merge(admit.holds, first, second)
        if isinstance(second, Unavailable):  # it may be admitted yet: the caller undoes that
            return second
        del self._leases[admit.lease]
        self._correct_share(own, dict.fromkeys(own.rates, 0))
        self.shared.undo(admit.lease)
        return _find_place(second, admit.holds, windows)

    async def _change(self, change: Change) -> Result:
        """Take first, in both; then give back what is dropped."""
        own = self._leases.get(change.lease)
        if own is None:
            return GONE
        shared, windows = _split(change.holds)
        first: Result = Admitted()
        if shared:
            first = await self._take(change.lease, shared, own, is_new=False)
        if not isinstance(first, Admitted):
            return _find_place(first, change.holds, shared)
        second = await self._change_windows(own, replace(change, holds=windows))
        if isinstance(second, Admitted):
            drops = [counter for counter in change.drops if _is_shared(counter)]
            if drops:
                self.shared.drop(change.lease, drops)
            return _merge(change.holds, first, second)
        if shared:
            self.shared.drop(change.lease, [hold.counter for hold in shared], with_rates=True)
            for hold in shared:
                own.rates.pop(hold.counter, None)
        return _find_place(second, change.holds, windows)

    async def _change_windows(self, own: _OwnLease, change: Change) -> Result:
        drops = tuple(counter for counter in change.drops if not _is_shared(counter))
        if not change.holds and not (drops and own.has_windows):
            return Admitted()
        operation = replace(change, drops=drops) if own.has_windows else replace(own.windows, holds=change.holds)
        own.has_windows = True
        return (await self.windows.apply([operation]))[0]

    async def _take(self, lease: str, holds: Sequence[Hold], own: _OwnLease, *, is_new: bool) -> Result:
        """Take rates and slots: in Valkey, or of the share of this process while that does not answer."""
        take_shared = self.shared.admit if is_new else self.shared.take
        try:
            result: Result = await take_shared(lease, holds)
            self._share.limit_to(holds, result)
        except SharedStateError:
            self.shared.name_soon()
            result = self._share.take(holds)
            own.is_by_share = True
            if isinstance(result, Admitted):
                self.shared.hold(lease, holds)
            elif is_new:  # the server may do it yet
                self.shared.settle(lease, {hold.counter: 0 for hold in holds if hold.kind == HoldKind.RATE})
        if isinstance(result, Admitted):
            own.rates |= {hold.counter: hold.amount for hold in holds if hold.kind == HoldKind.RATE}
        return result

    def _forget(self, settle: Settle) -> _OwnLease | None:
        own = self._leases.pop(settle.lease, None)
        if own is not None:
            self._correct_share(own, settle.amounts)
        return own

    def _correct_share(self, own: _OwnLease, amounts: Mapping[str, int]) -> None:
        if own.is_by_share:
            for counter, taken in own.rates.items():
                self._share.correct(counter, amounts.get(counter, taken) - taken)


def _is_shared(counter: str) -> bool:
    return counter.rpartition(":")[2] in SHARED_LIMITS


def _split(holds: Sequence[Hold]) -> tuple[tuple[Hold, ...], tuple[Hold, ...]]:
    """Return rates and slots, and windows."""
    shared = tuple(hold for hold in holds if hold.kind in SHARED_KINDS)
    return shared, tuple(hold for hold in holds if hold.kind not in SHARED_KINDS)


def _list_rates(settle: Settle) -> dict[str, int]:
    return {name: amount for name, amount in settle.amounts.items() if _is_shared(name)}


def _without_rates(settle: Settle) -> Settle:
    return replace(settle, amounts={name: amount for name, amount in settle.amounts.items() if not _is_shared(name)})


def _find_place(result: Result, holds: Sequence[Hold], part: Sequence[Hold]) -> Result:
    """Return a refusal with the place of its hold among all."""
    return replace(result, hold=holds.index(part[result.hold])) if isinstance(result, Refused) else result


def _merge(holds: Sequence[Hold], shared: Admitted, windows: Admitted) -> Admitted:
    """Return what is left of all holds, in their order."""
    left, of_windows = iter(shared.remaining), iter(windows.remaining)
    return Admitted(tuple(next(left if hold.kind in SHARED_KINDS else of_windows, 0) for hold in holds))

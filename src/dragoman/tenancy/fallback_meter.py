"""The meter of a database; while that does not answer, this process counts rates and slots within its share of them.

Windows are never counted here: a request under a limit of dollars or tokens a day learns that they cannot be.
"""

from collections.abc import Sequence

from msgspec import Struct

from dragoman.store.meter import (
    Admit,
    Admitted,
    Change,
    Hold,
    HoldKind,
    Level,
    Operation,
    Refused,
    Result,
    Settle,
    Unavailable,
)
from dragoman.tenancy.opened_meter import RunningMeter
from dragoman.tenancy.process_share import ProcessShare, find_place, is_shared, split_holds


class _OwnLease(Struct):
    """What a lease of this process has of slots, and of rates of its share."""

    slots: set[str]
    rates: dict[str, int]


class FallbackMeter:
    """Asks the meter of the database."""

    def __init__(self, counted: RunningMeter) -> None:
        self._counted = counted
        self._running: dict[str, int] = {}  # slots of this process, by counter
        self._share = ProcessShare(lambda: counted.processes, self._running)
        self._leases: dict[str, _OwnLease] = {}

    @property
    def process(self) -> str:
        return self._counted.process

    @property
    def processes(self) -> int:
        return self._counted.processes

    @property
    def keeps_charges(self) -> bool:
        return self._counted.keeps_charges

    @property
    def drift(self) -> float | None:
        return self._counted.drift

    @property
    def is_out(self) -> bool:
        return self._counted.is_out

    async def apply(self, operations: Sequence[Operation]) -> Sequence[Result]:
        results = await self._counted.apply(operations)
        return [self._record(operation, result) for operation, result in zip(operations, results, strict=True)]

    def post(self, operation: Operation) -> None:
        if isinstance(operation, Settle):
            self._forget(operation)
        self._counted.post(operation)

    async def read(self, counters: Sequence[str]) -> Sequence[Level]:
        levels = await self._counted.read(counters)
        if not levels and all(map(is_shared, counters)):
            return tuple(map(self._share.read, counters))
        return levels

    def start(self) -> None:
        self._counted.start()

    async def stop(self) -> None:
        await self._counted.stop()

    def _record(self, operation: Operation, result: Result) -> Result:
        """Note what a lease has of rates and slots. Where there is no answer, take them of the share."""
        match operation:
            case Settle():
                self._forget(operation)
                return result
            case Admit() | Change():
                shared, windows = split_holds(operation.holds)
            case _:
                return result
        if isinstance(operation, Change) and isinstance(result, (Admitted, Unavailable)):
            self._release(operation.lease, operation.drops)
        match result:
            case Admitted():
                self._hold(operation.lease, shared)
                left = zip(operation.holds, result.remaining, strict=False)
                rates = [(hold, rest) for hold, rest in left if hold.kind == HoldKind.RATE]
                self._share.limit_to([hold for hold, _ in rates], Admitted(tuple(rest for _, rest in rates)))
            case Refused():
                self._share.limit_to(operation.holds, result)
            case Unavailable() if shared:
                return self._take_share(operation, shared, result if windows else None)
        return result

    def _take_share(self, operation: Admit | Change, shared: Sequence[Hold], unknown: Result | None) -> Result:
        """Take rates and slots of the share; return `unknown` if something else cannot be counted."""
        if isinstance(operation, Change) and unknown is not None:
            return unknown
        taken = self._share.take(shared)
        if not isinstance(taken, Admitted):
            if isinstance(operation, Admit):  # the database may do it yet
                self._counted.post(Settle(operation.lease, {hold.counter: 0 for hold in shared}))
            return find_place(taken, operation.holds, shared)
        rates = self._hold(operation.lease, shared).rates
        for hold in shared:
            if hold.kind == HoldKind.RATE:
                rates[hold.counter] = rates.get(hold.counter, 0) + hold.amount
        return unknown or taken

    def _hold(self, lease: str, holds: Sequence[Hold]) -> _OwnLease:
        own = self._leases.setdefault(lease, _OwnLease(set(), {}))
        for hold in holds:
            if hold.kind == HoldKind.SLOT and hold.counter not in own.slots:
                own.slots.add(hold.counter)
                self._running[hold.counter] = self._running.get(hold.counter, 0) + 1
        return own

    def _release(self, lease: str, counters: Sequence[str]) -> None:
        own = self._leases.get(lease)
        for counter in () if own is None else own.slots.intersection(counters):
            assert own is not None
            own.slots.remove(counter)
            self._running[counter] -= 1
            if not self._running[counter]:
                del self._running[counter]

    def _forget(self, settle: Settle) -> None:
        own = self._leases.get(settle.lease)
        if own is None:
            return
        self._release(settle.lease, tuple(own.slots))
        del self._leases[settle.lease]
        for counter, taken in own.rates.items():
            self._share.correct(counter, settle.amounts.get(counter, taken) - taken)

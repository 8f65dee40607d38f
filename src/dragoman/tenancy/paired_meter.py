"""Two meters as one: rates and slots are counted in Valkey, windows where they are without it.

What a request takes of rates and slots is taken first, and given back if its windows have no room. While Valkey is out,
this process counts them by itself, within its share of each limit.
"""

import time
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

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
    Result,
    RowsWritten,
    Settle,
    Unavailable,
)
from dragoman.store.valkey import SharedStateError
from dragoman.store.valkey_meter import ValkeyMeter
from dragoman.tenancy.opened_meter import RunningMeter
from dragoman.tenancy.process_share import SHARED_KINDS, ProcessShare, find_place, is_shared, split_holds

CAREFUL_S = 2.0  # after something was taken of a share, during which Valkey may not know what all processes took


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
        self._share = ProcessShare(lambda: self.processes, shared.running)
        self._leases: dict[str, _OwnLease] = {}
        self._careful_until = 0.0
        shared.collect_unknown = self._share.collect_owed

    @property
    def process(self) -> str:
        return self.windows.process

    @property
    def processes(self) -> int:
        return max(self.shared.processes, self.windows.processes)  # either may not have answered yet

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
        shared = [counter for counter in counters if is_shared(counter)]
        windows = [counter for counter in counters if not is_shared(counter)]
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
        shared, windows = split_holds(admit.holds)
        own = self._leases.get(admit.lease) or _OwnLease(replace(admit, holds=windows), {})
        first: Result = Admitted()
        if shared:
            first = await self._take(admit.lease, shared, own, is_new=True)
        if not isinstance(first, Admitted):
            return find_place(first, admit.holds, shared)
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
        return find_place(second, admit.holds, windows)

    async def _change(self, change: Change) -> Result:
        """Take first, in both; then give back what is dropped."""
        own = self._leases.get(change.lease)
        if own is None:
            return GONE
        shared, windows = split_holds(change.holds)
        first: Result = Admitted()
        if shared:
            first = await self._take(change.lease, shared, own, is_new=False)
        if not isinstance(first, Admitted):
            return find_place(first, change.holds, shared)
        second = await self._change_windows(own, replace(change, holds=windows))
        if isinstance(second, Admitted):
            drops = [counter for counter in change.drops if is_shared(counter)]
            if drops:
                self.shared.drop(change.lease, drops)
            return _merge(change.holds, first, second)
        if shared:
            self.shared.drop(change.lease, [hold.counter for hold in shared], with_rates=True)
            for hold in shared:
                own.rates.pop(hold.counter, None)
        return find_place(second, change.holds, windows)

    async def _change_windows(self, own: _OwnLease, change: Change) -> Result:
        drops = tuple(counter for counter in change.drops if not is_shared(counter))
        if not change.holds and not (drops and own.has_windows):
            return Admitted()
        operation = replace(change, drops=drops) if own.has_windows else replace(own.windows, holds=change.holds)
        own.has_windows = True
        return (await self.windows.apply([operation]))[0]

    async def _take(self, lease: str, holds: Sequence[Hold], own: _OwnLease, *, is_new: bool) -> Result:
        """Take rates and slots: in Valkey, or of the share of this process while that does not answer.

        Soon after that it must have room in both.
        """
        take_shared = self.shared.admit if is_new else self.shared.take
        of_share: Result | None = None
        slots: Sequence[str] = ()
        if time.monotonic() < self._careful_until:
            of_share = self._share.take(holds)
            if not isinstance(of_share, Admitted):
                return of_share
            slots = self.shared.hold(lease, holds)
        try:
            result: Result = await take_shared(lease, holds)
            if of_share is not None and not isinstance(result, Admitted):
                self._share.give_back(holds)
                self.shared.release(lease, slots)
            self._share.limit_to(holds, result)
        except SharedStateError:
            self.shared.name_soon()
            result = of_share or self._share.take(holds)
            own.is_by_share = True
            if isinstance(result, Admitted):
                self._careful_until = time.monotonic() + CAREFUL_S
                self._share.owe(holds)
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


def _list_rates(settle: Settle) -> dict[str, int]:
    return {name: amount for name, amount in settle.amounts.items() if is_shared(name)}


def _without_rates(settle: Settle) -> Settle:
    return replace(settle, amounts={name: amount for name, amount in settle.amounts.items() if not is_shared(name)})


def _merge(holds: Sequence[Hold], shared: Admitted, windows: Admitted) -> Admitted:
    """Return what is left of all holds, in their order."""
    left, of_windows = iter(shared.remaining), iter(windows.remaining)
    return Admitted(tuple(next(left if hold.kind in SHARED_KINDS else of_windows, 0) for hold in holds))

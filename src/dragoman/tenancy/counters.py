"""The counters and leases of a meter in memory: one operation after the other, without I/O, the clock passed in."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.store.meter import (
    ACKNOWLEDGED,
    GONE,
    Acknowledged,
    Admit,
    Admitted,
    Announce,
    Beat,
    Change,
    Correct,
    Gone,
    Hold,
    HoldKind,
    Level,
    Missing,
    Operation,
    Refused,
    Result,
    RowsWritten,
    Settle,
    charge_lease,
    has_row,
    make_lost_row,
)
from dragoman.store.usage_rows import UsageRow
from dragoman.tenancy.rates import UNITS, Bucket, change_limit, count_left, fill, find_wait_ms, make_bucket, take

SLOT_WAIT_MS = 1000
BARRED_MS = 60_000  # how late an admission may arrive after its lease was settled
MAX_BARRED = 50_000  # ids of a generation; with more, it ends earlier
MAX_COLLECTED = 1_000  # processes whose end is remembered
UNNAMED_MS = 10_000  # how long a lease may be held that its process does not name

RATE, SLOT, WINDOW, CHECK = HoldKind.RATE, HoldKind.SLOT, HoldKind.WINDOW, HoldKind.CHECK
_WINDOWS = (WINDOW, CHECK)


class WindowCount(Struct, gc=False):
    """What was spent and is reserved in one window."""

    spent: int = 0
    reserved: int = 0
    running: int = 0
    is_known: bool = False  # `spent` was set from rows
    settled: int = 0  # all that leases have added since this process started
    is_touched: bool = True  # since it was last compared with the rows
    compared: frozenset[str] | None = None  # while it is compared with the rows: the leases that are left out there
    is_disturbed: bool = False  # another one was settled meanwhile


class HeldLease(Struct, gc=False):
    """A lease: running, or settled and not written."""

    admit: Admit
    holds: tuple[Hold, ...]  # what it has now
    admitted_ms: int
    settled: Settle | None = None


class _Slots(Struct, gc=False):
    running: int = 0


class _Rate(Struct, gc=False):
    bucket: Bucket
    limit: int


class RowComparison(Struct, frozen=True):
    """What the rows must be compared with: they are summed without these leases, which are counted here."""

    leases: tuple[str, ...]
    unwritten: int  # what those of them have spent that are settled
    settled: int


class Counters:
    """All counters of a store, and the leases that hold them. Times are milliseconds of a monotonic clock."""

    def __init__(self, now_ms: Callable[[], int], *, has_rows: bool = True) -> None:
        self._now_ms = now_ms
        self._has_rows = has_rows  # without usage rows, nothing is known of the past, and leases end when settled
        self.windows: dict[str, WindowCount] = {}
        self.leases: dict[str, HeldLease] = {}
        self._slots: dict[str, _Slots] = {}
        self._rates: dict[str, _Rate] = {}
        # Two generations: taking the oldest id out of one set would search it from its start each time.
        self._barred: set[str] = set()
        self._barred_before: set[str] = set()
        self._barring_since = now_ms()
        self._collected: dict[str, None] = {}

    def apply(self, operation: Operation) -> Result | Missing:
        """Apply one operation at once."""
        # Types are compared: `isinstance` of a struct that does not fit is slow.
        if type(operation) is Admit:
            return self._admit(operation)
        if type(operation) is Settle:
            return self._settle(operation)
        if type(operation) is RowsWritten:
            for lease in operation.leases:
                self._forget(lease)
            return ACKNOWLEDGED
        match operation:
            case Correct():
                return self._correct(operation)
            case Change():
                return self._change(operation)
            case Beat():
                return self._beat(operation)
            case Announce():
                return self._announce(operation)

    def read(self, counter: str) -> Level | None:
        """Return how a counter stands; None if that is not known."""
        if (window := self.windows.get(counter)) is not None:
            return Level(counter, window.spent, window.reserved, window.running) if window.is_known else None
        if (slots := self._slots.get(counter)) is not None:
            return Level(counter, running=slots.running)
        if (rate := self._rates.get(counter)) is not None:
            fill(rate.bucket, rate.limit, self._now_ms())
            return Level(counter, rate.limit - count_left(rate.bucket))
        return None

    # The operations.

    def _admit(self, admit: Admit) -> Result | Missing:
        if (known := self.leases.get(admit.lease)) is not None:
            return GONE if known.settled else Admitted(self._count_remaining(admit.holds))
        if self._is_barred(admit.lease) or admit.process in self._collected:
            return GONE
        refusal = self._find_refusal(admit.holds, ())
        if refusal is not None:
            return refusal
        remaining = self._take(admit.holds)
        self.leases[admit.lease] = HeldLease(admit, admit.holds, self._now_ms())
        return Admitted(remaining)

    def _settle(self, settle: Settle) -> Acknowledged | Gone:
        lease = self.leases.get(settle.lease)
        if lease is None:
            self._bar(settle.lease)
            return GONE
        if lease.settled is not None:
            return GONE if lease.admit.process in self._collected else ACKNOWLEDGED
        amounts = settle.amounts
        for hold in lease.holds:
            self._give_back(hold, amounts)
        for counter, amount in amounts.items():
            if amount and (window := self.windows.get(counter)) is not None:
                window.spent += amount
                window.settled += amount
                window.is_touched = True
                if window.compared is not None and settle.lease not in window.compared:
                    window.is_disturbed = True
        lease.settled = settle
        if not has_row(settle) or not self._has_rows:
            self._forget(settle.lease)
        return ACKNOWLEDGED

    def _correct(self, correct: Correct) -> Acknowledged | Gone:
        lease = self.leases.get(correct.lease)
        if lease is None or lease.settled is not None:
            return GONE
        lease.holds = raise_holds(lease.holds, correct.amounts, self._add)
        return ACKNOWLEDGED

    def _change(self, change: Change) -> Result | Missing:
        lease = self.leases.get(change.lease)
        if lease is None or lease.settled is not None:
            return GONE
        dropped = [hold for hold in lease.holds if hold.counter in change.drops and hold.kind is not RATE]
        for hold in dropped:
            self._give_back(hold, {})
        kept = tuple(hold for hold in lease.holds if hold not in dropped)
        refusal = self._find_refusal(change.holds, {hold.counter for hold in kept})
        if refusal is not None:
            self._take(dropped)
            return refusal
        known = {hold.counter for hold in kept}
        remaining = self._take(hold for hold in change.holds if hold.counter not in known)
        lease.holds = merge_holds(kept, change.holds, self._add)
        return Admitted(remaining if not known else self._count_remaining(change.holds))

    def _beat(self, beat: Beat) -> Acknowledged | Gone:
        if beat.process in self._collected:
            return GONE
        if beat.leases is not None:
            self._drop_unnamed(beat.process, {*beat.leases})
        return ACKNOWLEDGED

    def _announce(self, announce: Announce) -> Acknowledged | Gone:
        if announce.process in self._collected:
            return GONE
        for admit in announce.running:
            if admit.lease not in self.leases and not self._is_barred(admit.lease):
                self._hold_again(admit)
        for admit, settle in announce.settled:
            if admit.lease not in self.leases and not self._is_barred(admit.lease):
                self._hold_again(admit).settled = settle
                for hold in admit.holds:
                    self._give_back(hold, {})
                for counter in settle.amounts:  # its row may have been counted: it is counted again, without that row
                    if counter in self.windows:
                        self.windows[counter].is_known = False
        return ACKNOWLEDGED

    # Processes.

    def collect(self, process: str) -> None:
        """End all leases of a process that is gone, and charge those that ran; their rows are `find_unwritten`."""
        self._collected[process] = None
        if len(self._collected) > MAX_COLLECTED:
            del self._collected[next(iter(self._collected))]
        for lease in [*self.leases.values()]:
            if lease.admit.process == process and lease.settled is None:
                self._settle(charge_lease(lease.admit, lease.holds))

    def find_unwritten(self, process: str) -> Iterator[tuple[str, UsageRow | None]]:
        """Yield the ids of the settled leases of a process with their rows; None if a lease has none."""
        for id, lease in [*self.leases.items()]:
            if lease.admit.process == process and lease.settled is not None:
                yield id, make_lost_row(lease.admit, lease.settled)

    @property
    def collected(self) -> tuple[str, ...]:
        """The processes that were collected and have rows to write."""
        found = {lease.admit.process for lease in self.leases.values() if lease.settled is not None}
        return tuple(process for process in self._collected if process in found)

    # Comparison with the rows.

    def begin_comparison(self, counter: str) -> RowComparison:
        """Begin to compare a counter with the rows. `finish_comparison` must follow."""
        window = self.windows.setdefault(counter, WindowCount())
        leases, unwritten = [], 0
        for id, lease in self.leases.items():
            amount = None if lease.settled is None else lease.settled.amounts.get(counter)
            if amount is not None or any(hold.counter == counter for hold in lease.holds):
                leases.append(id)
                unwritten += amount or 0
        window.compared, window.is_disturbed, window.is_touched = frozenset(leases), False, False
        return RowComparison(tuple(leases), unwritten, window.settled)

    def finish_comparison(self, counter: str, comparison: RowComparison, rows: int | None) -> int | None:
        """Set what was spent to what the rows say; return it before, if it was known.

        None as `rows` ends the comparison without a change. Raises Disturbed if new requests ended meanwhile: the rows
        may have them or not, so that they must be read again.
        """
        window = self.windows[counter]
        window.compared = None
        if rows is None:
            window.is_touched = True
            return None
        if window.is_disturbed:
            window.is_touched = True
            raise Disturbed
        before = window.spent if window.is_known else None
        window.spent = rows + comparison.unwritten + window.settled - comparison.settled
        window.is_known = True
        return before

    def forget_windows(self) -> None:
        """Forget what was spent, so that it is read from the rows again."""
        for window in self.windows.values():
            window.is_known = False

    def tidy(self, is_past: Callable[[str], bool]) -> None:
        """Remove the counters of past windows, full buckets, and what was remembered for long enough."""
        now = self._now_ms()
        for counter, window in [*self.windows.items()]:
            if not window.running and window.compared is None and is_past(counter):
                del self.windows[counter]
        for counter in [name for name, slots in self._slots.items() if not slots.running]:
            del self._slots[counter]
        for counter, rate in [*self._rates.items()]:
            fill(rate.bucket, rate.limit, now)
            if rate.bucket.level >= rate.limit * UNITS:
                del self._rates[counter]
        if now - self._barring_since >= BARRED_MS:
            self._begin_barring()

    # The parts of an operation.

    def _find_refusal(self, holds: Sequence[Hold], own: Iterable[str]) -> Refused | Missing | None:
        """Return the first hold that has no room, one that is spent before one that others have reserved.

        The lease has the counters `own` already.
        """
        missing: list[str] = []
        waiting: Refused | None = None
        for index, hold in enumerate(holds):
            kind, limit = hold.kind, hold.limit
            if kind in _WINDOWS:
                window = self.windows.get(hold.counter)
                if window is None or not window.is_known:
                    if self._has_rows:
                        missing.append(hold.counter)
                        continue
                    window = self.windows[hold.counter] = WindowCount(is_known=True)
                spent = window.spent
                if spent >= limit:
                    return Refused(index, spent, window.reserved, is_spent=True)
                if kind is CHECK or spent + window.reserved + hold.amount <= limit:
                    continue
                if hold.is_strict and spent + hold.amount > limit:
                    return Refused(index, spent, window.reserved, is_spent=True)
                if waiting is None and (hold.is_strict or window.running > (hold.counter in own)):
                    waiting = Refused(index, spent, window.reserved, waits=True)
            elif not limit:
                return Refused(index, is_spent=True)
            elif kind is SLOT:
                slots = self._slots.get(hold.counter)
                if slots is not None and slots.running >= limit and hold.counter not in own:
                    return Refused(index, slots.running, wait_ms=SLOT_WAIT_MS)
            else:
                bucket = self._fill(hold)
                wait_ms = find_wait_ms(bucket, limit, hold.amount)
                if wait_ms:
                    return Refused(index, limit - count_left(bucket), wait_ms=wait_ms)
        return Missing(tuple(missing)) if missing else waiting

    def _fill(self, hold: Hold) -> Bucket:
        rate = self._rates.get(hold.counter)
        now = self._now_ms()
        if rate is None:
            rate = self._rates[hold.counter] = _Rate(make_bucket(hold.limit, now), hold.limit)
        fill(rate.bucket, rate.limit, now)
        if rate.limit != hold.limit:
            change_limit(rate.bucket, rate.limit, hold.limit)
            rate.limit = hold.limit
        return rate.bucket

    def _take(self, holds: Iterable[Hold]) -> tuple[int, ...]:
        """Take holds; return what is left of their limits."""
        remaining = []
        for hold in holds:
            kind = hold.kind
            if kind is WINDOW:
                window = self.windows.get(hold.counter)
                if window is None:
                    window = self.windows[hold.counter] = WindowCount()
                window.reserved += hold.amount
                window.running += 1
                remaining.append(hold.limit - window.spent - window.reserved)
            elif kind is CHECK:
                window = self.windows.get(hold.counter)
                remaining.append(hold.limit - (0 if window is None else window.spent))
            elif kind is SLOT:
                slots = self._slots.get(hold.counter)
                if slots is None:
                    slots = self._slots[hold.counter] = _Slots()
                slots.running += 1
                remaining.append(hold.limit - slots.running)
            else:
                bucket = self._rates[hold.counter].bucket  # filled when it was checked
                take(bucket, hold.amount)
                remaining.append(count_left(bucket))
        return tuple(remaining)

    def _give_back(self, hold: Hold, amounts: Mapping[str, int]) -> None:
        """End a hold. Of a rate, `amounts` may say what was really taken."""
        kind = hold.kind
        if kind is WINDOW:
            window = self.windows[hold.counter]
            window.reserved -= hold.amount
            window.running -= 1
        elif kind is SLOT:
            self._slots[hold.counter].running -= 1
        elif kind is RATE:
            amount = amounts.get(hold.counter)
            if amount is not None and amount != hold.amount and hold.counter in self._rates:
                take(self._fill(replace(hold, limit=self._rates[hold.counter].limit)), amount - hold.amount)

    def _add(self, hold: Hold, amount: int) -> None:
        """Raise what a lease has of a hold."""
        if hold.kind is WINDOW:
            self.windows[hold.counter].reserved += amount
        elif hold.kind is RATE and hold.counter in self._rates:
            take(self._rates[hold.counter].bucket, amount)

    def _count_remaining(self, holds: Iterable[Hold]) -> tuple[int, ...]:
        remaining = []
        for hold in holds:
            level = self.read(hold.counter)
            used = 0 if level is None else level.running if hold.kind is SLOT else level.spent + level.reserved
            remaining.append(hold.limit - used)
        return tuple(remaining)

    def _hold_again(self, admit: Admit) -> HeldLease:
        """Take a lease that another meter has admitted; rates start again."""
        self._take(hold for hold in admit.holds if hold.kind is not RATE)
        lease = self.leases[admit.lease] = HeldLease(admit, admit.holds, self._now_ms())
        return lease

    def _drop_unnamed(self, process: str, named: set[str]) -> None:
        """End what a process does not know that it has: admitted too late, or written."""
        before = self._now_ms() - UNNAMED_MS
        for id, lease in [*self.leases.items()]:
            if lease.admit.process == process and id not in named and lease.admitted_ms <= before:
                if lease.settled is None:
                    self._settle(Settle(id, {}))
                self._forget(id)

    def _forget(self, lease: str) -> None:
        """Forget a settled lease, whose amounts its row has from now on."""
        known = self.leases.get(lease)
        if known is not None and known.settled is not None:
            del self.leases[lease]
            self._bar(lease)

    def _is_barred(self, lease: str) -> bool:
        return lease in self._barred or lease in self._barred_before

    def _bar(self, lease: str) -> None:
        self._barred.add(lease)
        if len(self._barred) >= MAX_BARRED:
            self._begin_barring()

    def _begin_barring(self) -> None:
        """Begin a generation of barred ids, and forget the last but one."""
        self._barred_before, self._barred = self._barred, set()
        self._barring_since = self._now_ms()


class Disturbed(Exception):
    """New requests ended while a counter was compared with the rows."""


Add = Callable[[Hold, int], None]


def raise_holds(holds: tuple[Hold, ...], amounts: Mapping[str, int], add: Add) -> tuple[Hold, ...]:
    """Return holds with amounts no lower than these; `add` is called with what each is raised by."""
    raised = []
    for hold in holds:
        amount = max(hold.amount, amounts.get(hold.counter, 0))
        if amount > hold.amount:
            add(hold, amount - hold.amount)
        raised.append(hold if amount == hold.amount else replace(hold, amount=amount))
    return tuple(raised)


def merge_holds(kept: tuple[Hold, ...], more: tuple[Hold, ...], add: Add) -> tuple[Hold, ...]:
    """Return holds with more: amounts of the same counter are added, and `add` is called with each of these."""
    found = {hold.counter: hold for hold in kept}
    for hold in more:
        old = found.get(hold.counter)
        if old is not None:
            add(old, hold.amount)
            hold = replace(hold, amount=old.amount + hold.amount)
        found[hold.counter] = hold
    return tuple(found.values())

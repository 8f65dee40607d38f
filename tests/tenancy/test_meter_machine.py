"""Any order of operations on a meter in memory: what is spent, reserved and running is what the leases say."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.store.meter import (
    ACKNOWLEDGED,
    Admit,
    Admitted,
    Announce,
    Beat,
    Change,
    Correct,
    Hold,
    HoldKind,
    Missing,
    Refused,
    RowsWritten,
    Settle,
)
from dragoman.tenancy.counters import BARRED_MS, Counters, Disturbed, RowComparison
from tenancy.meters import make_charge

WINDOWS = [f"{scope}:usd:2026-11" for scope in ("all", "key:a", "key:b", "provider:x", "provider:y")]
SLOTS = [f"{scope}:concurrent" for scope in ("key:a", "key:b")]
PROCESSES = ["first", "second", "third"]
IDS = st.sampled_from([f"lease-{number}" for number in range(12)])
AMOUNTS = st.integers(0, 50)
LIMITS = st.integers(0, 300)
HOLDS = st.lists(
    st.one_of(
        st.builds(
            Hold, st.sampled_from(WINDOWS), st.just(HoldKind.WINDOW), st.integers(0, 300), AMOUNTS, st.booleans()
        ),
        st.builds(Hold, st.sampled_from(SLOTS), st.just(HoldKind.SLOT), st.integers(0, 3), st.just(1)),
    ),
    max_size=4,
    unique_by=lambda hold: hold.counter,
).map(tuple)


class MeterMachine(RuleBasedStateMachine):
    """Compares with a model: the leases that run, and the sum of what was settled."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.counters = Counters(lambda: self.now)
        self.running: dict[str, dict[str, Hold]] = {}
        self.process: dict[str, str] = {}
        self.settled: dict[str, dict[str, int]] = {}  # and not written
        self.written: dict[str, dict[str, int]] = {}
        self.rows: Counter[str] = Counter()  # sums of those written
        self.ended: set[str] = set()
        self.collected: set[str] = set()
        self.comparisons: dict[str, RowComparison] = {}

    @rule(lease=IDS, process=st.sampled_from(PROCESSES), holds=HOLDS)
    def admit(self, lease: str, process: str, holds: tuple[Hold, ...]) -> None:
        admit = Admit(lease, process, holds, charge=make_charge(1, 7))
        result = self.counters.apply(admit)
        if isinstance(result, Missing):
            for counter in result.counters:
                self.begin_comparison(counter)
                self.finish_comparison(counter)
            result = self.counters.apply(admit)
        if lease in self.running:
            assert isinstance(result, Admitted)
            return
        assert not isinstance(result, Admitted) or (lease not in self.ended and process not in self.collected)
        if isinstance(result, Admitted):
            self.running[lease] = {hold.counter: hold for hold in holds}
            self.process[lease] = process
        elif isinstance(result, Refused):
            assert result.hold < len(holds)

    @rule(lease=IDS, amounts=st.dictionaries(st.sampled_from(WINDOWS), AMOUNTS))
    def settle(self, lease: str, amounts: dict[str, int]) -> None:
        result = self.counters.apply(Settle(lease, amounts))
        if lease in self.running:
            assert result == ACKNOWLEDGED
            self.end(lease, amounts)
        self.ended.add(lease)

    def end(self, lease: str, amounts: dict[str, int]) -> None:
        del self.running[lease]
        self.ended.add(lease)
        if any(amounts.values()):
            self.settled[lease] = amounts

    @rule(lease=IDS, amounts=st.dictionaries(st.sampled_from(WINDOWS), AMOUNTS))
    def correct(self, lease: str, amounts: dict[str, int]) -> None:
        result = self.counters.apply(Correct(lease, amounts))
        assert (result == ACKNOWLEDGED) == (lease in self.running)
        for counter, hold in self.running.get(lease, {}).items():
            if hold.kind is HoldKind.WINDOW and amounts.get(counter, 0) > hold.amount:
                self.running[lease][counter] = Hold(counter, hold.kind, hold.limit, amounts[counter])

    @rule(lease=IDS, drops=st.lists(st.sampled_from(WINDOWS + SLOTS)), holds=HOLDS)
    def change(self, lease: str, drops: list[str], holds: tuple[Hold, ...]) -> None:
        result = self.counters.apply(Change(lease, tuple(drops), holds))
        if isinstance(result, Admitted):
            kept = {counter: hold for counter, hold in self.running[lease].items() if counter not in drops}
            for hold in holds:
                more = kept[hold.counter].amount if hold.counter in kept else 0
                kept[hold.counter] = Hold(hold.counter, hold.kind, hold.limit, hold.amount + more)
            self.running[lease] = kept

    @rule(leases=st.lists(IDS))
    def write(self, leases: list[str]) -> None:
        for lease in leases:
            if lease in self.settled:
                self.written[lease] = self.settled.pop(lease)
                self.rows.update(self.written[lease])
        self.counters.apply(RowsWritten(tuple(leases)))

    @rule(process=st.sampled_from(PROCESSES))
    def collect(self, process: str) -> None:
        self.counters.collect(process)
        self.collected.add(process)
        for lease in [lease for lease in self.running if self.process[lease] == process]:
            held = self.running[lease]
            reserved = [hold.amount for hold in held.values() if hold.kind is HoldKind.WINDOW]
            cost = max(reserved, default=7)
            self.end(lease, {counter: cost for counter, hold in held.items() if hold.kind is HoldKind.WINDOW})
            rows = dict(self.counters.find_unwritten(process))
            row = rows.get(lease)
            assert row is None or (row.cost_nano_usd, row.outcome, row.lease) == (cost, "interrupted", lease)

    @rule(counter=st.sampled_from(WINDOWS))
    def begin_comparison(self, counter: str) -> None:
        if counter not in self.comparisons:
            self.comparisons[counter] = self.counters.begin_comparison(counter)

    @rule(counter=st.sampled_from(WINDOWS))
    def finish_comparison(self, counter: str) -> None:
        """Read the rows now: those of leases that were known at the beginning are left out, so they are added."""
        comparison = self.comparisons.pop(counter, None)
        if comparison is None:
            return
        window = self.counters.windows[counter]
        left_out = sum(self.written.get(lease, {}).get(counter, 0) for lease in comparison.leases)
        try:
            before = self.counters.finish_comparison(counter, comparison, self.rows[counter] - left_out)
        except Disturbed:
            return
        assert before is None or before == window.spent

    @rule(seconds=st.integers(0, 20), process=st.sampled_from(PROCESSES))
    def beat(self, seconds: int, process: str) -> None:
        self.now = min(self.now + seconds * 1000, BARRED_MS - 1)  # longer, and a late admission would pass
        named = tuple(lease for lease, by in self.process.items() if by == process)
        self.counters.apply(Beat(process, named))
        self.counters.tidy(lambda counter: False)

    @invariant()
    def reserved_is_what_runs(self) -> None:
        for counter, window in self.counters.windows.items():
            holds = [held[counter] for held in self.running.values() if counter in held]
            assert window.reserved == sum(hold.amount for hold in holds)
            assert window.running == len(holds)

    @invariant()
    def spent_is_what_was_settled(self) -> None:
        for counter, window in self.counters.windows.items():
            if window.is_known:
                unwritten = sum(amounts.get(counter, 0) for amounts in self.settled.values())
                assert window.spent == self.rows[counter] + unwritten
                assert window.spent >= 0

    @invariant()
    def slots_are_those_that_run(self) -> None:
        for counter in SLOTS:
            level = self.counters.read(counter)
            assert (0 if level is None else level.running) == sum(counter in held for held in self.running.values())

    @invariant()
    def no_lease_outlives_its_process(self) -> None:
        assert not {self.process[lease] for lease in self.running} & self.collected


MeterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMeterMachine = MeterMachine.TestCase


def test_a_restarted_meter_knows_what_was_announced() -> None:
    hold, slot = Hold(WINDOWS[0], HoldKind.WINDOW, 100, 10), Hold(SLOTS[0], HoldKind.SLOT, 5, 1)
    running = Admit("a", "first", (hold, slot))
    ended = Admit("b", "first", (hold,))
    counters = Counters(lambda: 0)
    counters.apply(Announce("first", (running,), ((ended, Settle("b", {WINDOWS[0]: 4})),)))
    comparison = counters.begin_comparison(WINDOWS[0])
    assert sorted(comparison.leases) == ["a", "b"]
    counters.finish_comparison(WINDOWS[0], comparison, 50)
    window = counters.windows[WINDOWS[0]]
    assert (window.spent, window.reserved, window.running) == (54, 10, 1)
    counters.apply(Settle("a", {WINDOWS[0]: 1}))
    assert (window.spent, window.reserved, window.running) == (55, 0, 0)


def test_a_settled_lease_is_admitted_again_after_a_minute_at_the_earliest_and_two_at_the_latest() -> None:
    now = [0]
    counters = Counters(lambda: now[0], has_rows=False)

    def admit() -> bool:
        return isinstance(counters.apply(Admit("late", "p", ())), Admitted)

    now[0] = BARRED_MS // 2
    counters.apply(Settle("late", {}))
    for moment in (BARRED_MS, BARRED_MS + BARRED_MS // 2, 2 * BARRED_MS - 1):
        now[0] = moment
        counters.tidy(lambda _: False)
        assert not admit()
    now[0] = 2 * BARRED_MS
    counters.tidy(lambda _: False)
    assert admit()

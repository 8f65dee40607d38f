"""Admit requests under limits: each takes what its limits count, waits in line, or is refused; its lease ends with it.

One limiter serves a process. Which limits a request counts in, and in which windows, is decided when it is admitted,
and stays so. Here are amounts only; what a request costs is computed from prices in another place.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from dragoman.store.meter import (
    Acknowledged,
    Admit,
    Admitted,
    Change,
    Correct,
    Gone,
    Hold,
    HoldKind,
    Meter,
    Refused,
    Result,
    RowsWritten,
    Settle,
    Unavailable,
)
from dragoman.tenancy.limit_parts import LimitPart, make_parts
from dragoman.tenancy.limit_refusals import RefusedBy, describe_backlog, describe_refusal, describe_unreachable
from dragoman.tenancy.policies import KeyPolicy, LimitedScope, Policies
from dragoman.tenancy.reservation import DEFAULT_OUTPUT, MAX_OUTPUT, CostHistory, RequestSize, find_worst_case
from dragoman.tenancy.waiting_lines import LinesFull, Place, WaitingLines
from dragoman.translate.hub.failure import Failure, Kind, RequestError

MAX_PENDING_ROWS = 9_000  # of usage that is not stored yet; the writer keeps 10,000
ASK_AGAIN_S = (0.1, 0.3)  # how often the first of a line asks, if nothing has ended here


class AdmissionTarget(Struct, frozen=True):
    """Where a request may go; `size` says what it may cost there, None: it has no price."""

    provider: str
    model: str
    size: RequestSize | None

    @property
    def route(self) -> str:
        return f"{self.provider}/{self.model}"


class Demand(Struct, frozen=True, kw_only=True):
    """What a request needs of its limits."""

    key: str
    policy: KeyPolicy
    targets: tuple[AdmissionTarget, ...]  # in order of preference
    input_tokens: int  # estimated
    max_tokens: int | None  # of output, where the request or its key says


class Used(Struct, frozen=True):
    """What was used, in whole units."""

    cost_nano: int = 0
    tokens: int = 0  # fresh input and output
    credits_nano: int = 0


class RateLevel(Struct, frozen=True):
    """What is left of a limit of requests or tokens, and when all of it will be there again."""

    limit: int
    remaining: int
    reset_s: float | None  # from now; None: never


MakeCharge = Callable[["Lease"], bytes]
OnWait = Callable[[bool], None]  # called with whether a request waits for room in its limits


class SettledWatch(Protocol):
    """Called with the limits that a request counted in which has ended."""

    def __call__(self, parts: Sequence[LimitPart]) -> None: ...


class Lease:
    """What one admitted request holds."""

    __slots__ = (
        *("_changed", "_demand", "_is_over", "_is_strict", "_limiter", "_of_providers", "_own", "_provider"),
        *("id", "on_wait", "rates", "reserved_nano", "targets"),
    )

    def __init__(self, limiter: "Limiter", demand: Demand, own: tuple[LimitPart, ...], is_strict: bool) -> None:
        self.id = f"{random.getrandbits(96):024x}"  # has to be unique only
        self.targets = list(demand.targets)  # that are left
        self.reserved_nano = 0  # of the most expensive target
        self.on_wait: OnWait | None = None
        self.rates: dict[str, RateLevel] = {}  # "requests", "tokens": of the tightest scope
        self._limiter = limiter
        self._demand = demand
        self._own = own  # limits of all, team, user and key
        self._of_providers: dict[str, tuple[LimitPart, ...]] = {}  # those of each provider that was asked
        self._provider = ""  # whose limits hold something now
        self._is_strict = is_strict
        self._is_over = False

    @property
    def parts(self) -> tuple[LimitPart, ...]:
        """All limits that it counts in."""
        found = {part.counter: part for parts in (self._own, *self._of_providers.values()) for part in parts}
        return tuple(found.values())

    def list_counted(self) -> tuple[LimitPart, ...]:
        """Return the limits that it counts in if it goes to its first target."""
        return (*self._own, *self._limiter.list_provider_parts(self.targets[0].provider))

    def list_holds(self, target: AdmissionTarget) -> list[tuple[LimitPart, Hold]]:
        """Return what it takes if it goes to this target first, in the order of the checks."""
        amount = self.reserved_nano = self._estimate(target)
        if len(self.targets) > 1:
            self.reserved_nano = max(self._estimate(one) for one in self.targets)
        holds = [(part, self._hold(part, self.reserved_nano)) for part in self._own]
        of_provider = self._limiter.list_provider_parts(target.provider)
        if of_provider:
            holds += [(part, self._hold(part, amount)) for part in of_provider]
            holds.sort(key=_rank_of)
        return holds

    def accept(
        self, target: AdmissionTarget, holds: list[tuple[LimitPart, Hold]], admitted: Admitted, now: float
    ) -> None:
        """Note that everything was taken."""
        self._provider = target.provider
        self._of_providers[target.provider] = self._limiter.list_provider_parts(target.provider)
        self.rates = find_levels(holds, admitted.remaining, now)

    @property
    def keeps_charge(self) -> bool:
        """Whether others may have to write its usage row."""
        return self._limiter.meter.keeps_charges

    def renew(self) -> None:
        """Count in what is set now for its key: it has waited, and something was changed meanwhile."""
        limiter = self._limiter
        policy = limiter.policies.renew(self._demand.key, self._demand.policy)
        self._own, self._is_strict = limiter.list_own_parts(policy), limiter.is_strict

    def is_of_provider(self, part: LimitPart) -> bool:
        return not any(part is own for own in self._own)

    def correct(self, used: Used) -> None:
        """Raise what is reserved to what is known to be used already; never refused."""
        parts = (*self._own, *self._of_providers.get(self._provider, ()))
        amounts = {part.counter: _amount_of(part, used) for part in parts if part.kind is HoldKind.WINDOW}
        if amounts and not self._is_over:
            self._limiter.meter.post(Correct(self.id, amounts))

    async def change_target(self, provider: str, model: str) -> None:
        """Move what its provider's limits hold to those of another one. Raises RequestError if they refuse."""
        if provider == self._provider:
            return
        limiter = self._limiter
        before = self._of_providers.get(self._provider, ())
        after = limiter.list_provider_parts(provider)
        kept = {part.counter for part in before} & {part.counter for part in after}
        drops = tuple(part.counter for part in before if part.counter not in kept)
        target = next((one for one in self.targets if one.route == f"{provider}/{model}"), None)
        amount = 0 if target is None else self._estimate(target)
        holds = [(part, self._hold(part, amount)) for part in after if part.counter not in kept]
        holds.sort(key=_rank_of)
        if drops or holds:
            await limiter.change(self, drops, holds)
        self._of_providers[provider] = after
        self._provider = provider

    async def reserve_turn(self, input_tokens: int) -> bool:
        """Reserve the worst case of a further turn, where budgets are strict; return False if there is no room."""
        if not self._is_strict:
            return True
        target = next((one for one in self.targets if one.provider == self._provider), None)
        if target is None or target.size is None:
            return True
        size = replace(target.size, input_tokens=input_tokens)
        tokens = input_tokens + (MAX_OUTPUT if size.max_tokens is None else size.max_tokens)
        more = Used(find_worst_case(size), tokens)
        parts = (*self._own, *self._of_providers.get(self._provider, ()))
        holds = [
            (part, Hold(part.counter, part.kind, part.limit, _amount_of(part, more), is_strict=True))
            for part in sorted(parts, key=lambda part: part.rank)
            if part.kind is HoldKind.WINDOW
        ]
        try:
            await self._limiter.change(self, (), holds)
        except RequestError:
            return False
        self.reserved_nano += more.cost_nano
        return True

    def settle(self, used: Used, provider: str, charge: bytes = b"") -> None:
        """End it with what was really used, all of it at the provider that its row names; further calls do nothing."""
        if self._is_over:
            return
        self._is_over = True
        amounts: dict[str, int] = {}
        for part in self._own:
            _add(amounts, part, used)
        for name, parts in self._of_providers.items():
            for part in parts:
                _add(amounts, part, used if name == provider else NOTHING)
        self._limiter.end(self, Settle(self.id, amounts, charge))

    def record_cost(self, route: str, cost_nano: int) -> None:
        """Remember what such a request costs, for the next ones."""
        self._limiter.history.record(self._demand.key, route, cost_nano)

    def give_up(self) -> None:
        """Undo an admission whose answer is not known, or that is not needed: nothing is counted."""
        self._is_over = True
        amounts = {part.counter: 0 for part in self.list_counted() if part.kind is HoldKind.RATE}
        self._limiter.meter.post(Settle(self.id, amounts))

    def _estimate(self, target: AdmissionTarget) -> int:
        if target.size is None:
            return 0
        if self._is_strict:
            return find_worst_case(target.size)
        return self._limiter.history.estimate(self._demand.key, target.route, target.size)

    def _hold(self, part: LimitPart, cost_nano: int) -> Hold:
        demand, unit, kind = self._demand, part.unit, part.kind
        is_strict = self._is_strict and kind is HoldKind.WINDOW
        if unit == "usd":
            amount = cost_nano
        elif unit == "credits":
            amount = 0
        elif unit != "tokens":
            amount = 1
        else:
            most = demand.max_tokens
            output = min(DEFAULT_OUTPUT if most is None else most, DEFAULT_OUTPUT)
            if is_strict:
                output = max((_most_output(one) for one in self.targets), default=MAX_OUTPUT) if most is None else most
            amount = demand.input_tokens + output
        return Hold(part.counter, kind, part.limit, amount, is_strict)


NOTHING = Used()


def _most_output(target: AdmissionTarget) -> int:
    most = None if target.size is None else target.size.max_tokens
    return MAX_OUTPUT if most is None else most


def _rank_of(pair: tuple[LimitPart, Hold]) -> int:
    return pair[0].rank


def _amount_of(part: LimitPart, used: Used) -> int:
    if part.unit == "usd":
        return used.cost_nano
    return used.credits_nano if part.unit == "credits" else used.tokens


def _add(amounts: dict[str, int], part: LimitPart, used: Used) -> None:
    """Add what a limit counts at the end; requests and slots count at the beginning only."""
    if part.unit not in ("requests", "concurrent"):
        amounts[part.counter] = amounts.get(part.counter, 0) + _amount_of(part, used)


class Limiter:
    """Admits the requests of a process."""

    def __init__(
        self,
        meter: Meter,
        policies: Policies,
        now: Callable[[], float] = time.time,
        spread: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.meter = meter
        self.policies = policies
        self.history = CostHistory()
        self.count_pending: Callable[[], int] = lambda: 0  # rows of usage that are not stored yet
        self.on_settled: SettledWatch | None = None
        self._now = now
        self._spread = spread
        self._lines = WaitingLines(lambda: spread(*ASK_AGAIN_S))
        self._parts: dict[str, tuple[LimitedScope, object, tuple[LimitPart, ...], int]] = {}

    @property
    def waiting(self) -> int:
        """How many requests wait in line."""
        return self._lines.count

    @property
    def is_strict(self) -> bool:
        return self.policies.budget == "strict"

    def begin(self, demand: Demand) -> Lease | None:
        """Return the lease that a request needs; None if no limit counts it."""
        own = self.list_own_parts(demand.policy)
        if not own and not any(self.list_provider_parts(target.provider) for target in demand.targets):
            return None
        return Lease(self, demand, own, self.is_strict)

    async def admit(self, lease: Lease, make_charge: MakeCharge) -> None:
        """Take all that a request needs, in line if others have reserved it. Raises RequestError if a limit refuses it.

        If the windows cannot be counted, and `on_outage` is "open", it has its rates and slots only.
        """
        if self.count_pending() > MAX_PENDING_ROWS:
            raise RequestError(describe_backlog())
        try:
            await self._admit_in_line(lease, make_charge)
        except _NoAnswer:
            if self.policies.on_outage == "open":
                lease.accept(lease.targets[0], [], Admitted(), self._now())
                return
            lease.give_up()
            raise RequestError(describe_unreachable()) from None
        except RequestError:
            raise
        except BaseException:  # its client has left; the meter may still admit it
            lease.give_up()
            raise

    async def check(self, lease: Lease) -> None:
        """Raise RequestError as `admit` would, other than for what is reserved; nothing is taken."""
        try:
            refused = await self._ask(lease, lambda _: b"", keeps=False)
        except _NoAnswer:
            if self.policies.on_outage == "open":
                return
            raise RequestError(describe_unreachable()) from None
        if refused is not None and not refused.result.waits:
            raise RequestError(self._describe(refused))

    async def _admit_in_line(self, lease: Lease, make_charge: MakeCharge) -> None:
        counter = None
        if self._lines.count:
            counter = self._lines.find(part.counter for part in lease.list_counted())
        refused = await self._ask(lease, make_charge, keeps=counter is None)
        if counter is not None and (refused is None or refused.result.waits):
            refused = self._find_blocked(lease, counter)
        if refused is None:
            return
        if not refused.result.waits:
            raise RequestError(self._describe(refused))
        counter = refused.part.counter
        try:
            async with asyncio.timeout(self.policies.wait_s):
                await self._wait_in_line(lease, make_charge, counter)
        except (TimeoutError, LinesFull):
            raise RequestError(self._describe(refused)) from None

    async def _wait_in_line(self, lease: Lease, make_charge: MakeCharge, counter: str) -> None:
        place: Place | None = self._lines.join(counter)
        version = self.policies.version
        if lease.on_wait is not None:
            lease.on_wait(True)
        try:
            while True:
                assert place is not None
                await place.wait()
                if version != self.policies.version:
                    version = self.policies.version
                    lease.renew()
                refused = await self._ask(lease, make_charge)
                if refused is None:
                    return
                if not refused.result.waits:
                    failure = self._describe(refused)
                    if failure.kind is Kind.SPENT and refused.result.spent >= refused.hold.limit:
                        self._lines.end(refused.part.counter, failure)
                    raise RequestError(failure)
                if refused.part.counter != place.counter:
                    place.leave()
                    place = None
                    place = self._lines.join(refused.part.counter)
        finally:
            if place is not None:
                place.leave()

    async def _ask(self, lease: Lease, make_charge: MakeCharge, *, keeps: bool = True) -> RefusedBy | None:
        """Ask the meter, target by target; return what refused the last one, None if everything was taken.

        If not `keeps`, what was taken is given back.
        """
        dropped: RefusedBy | None = None
        while True:
            target, now = lease.targets[0], self._now()
            holds = lease.list_holds(target)
            admit = Admit(
                lease=lease.id if keeps else f"{lease.id}?",
                process=self.meter.process,
                holds=tuple(hold for _, hold in holds),
                scopes=tuple(dict.fromkeys(part.scope.name for part, _ in holds)),
                began_ms=int(now * 1000),
                charge=make_charge(lease) if keeps and self.meter.keeps_charges else b"",
            )
            result: Result | None = None
            try:
                [result] = await self.meter.apply((admit,))
            finally:
                if not keeps and type(result) is not Refused:
                    self.meter.post(Settle(admit.lease, {hold.counter: 0 for hold in admit.holds}))
            match result:
                case Admitted():
                    if keeps:
                        lease.accept(target, holds, result, now)
                    return None
                case Refused(hold=place):
                    part, hold = holds[place]
                    refused = RefusedBy(part, hold, result)
                case _:
                    raise _NoAnswer
            if lease.is_of_provider(part) and len(lease.targets) > 1:
                dropped = _choose(dropped, refused)
                lease.targets.pop(0)
                continue
            return _choose(dropped, refused) if lease.is_of_provider(part) and not result.waits else refused

    async def change(self, lease: Lease, drops: tuple[str, ...], holds: list[tuple[LimitPart, Hold]]) -> None:
        """Give back and take for a running lease. Raises RequestError if a limit refuses."""
        result = (await self.meter.apply((Change(lease.id, drops, tuple(hold for _, hold in holds)),)))[0]
        match result:
            case Refused(hold=place):
                part, hold = holds[place]
                raise RequestError(self._describe(RefusedBy(part, hold, result)))
            case Unavailable() if self.policies.on_outage != "open":
                raise RequestError(describe_unreachable())
            case Admitted() | Acknowledged() | Gone() | Unavailable():
                self._lines.wake(drops)

    def end(self, lease: Lease, settle: Settle) -> None:
        """Settle a lease, and let those ask who wait for what it held."""
        self.meter.post(settle)
        self._lines.wake(settle.amounts)
        if self.on_settled is not None:
            self.on_settled(lease.parts)

    def record_written(self, leases: Sequence[str]) -> None:
        """Note that the usage rows of these leases are stored."""
        self.meter.post(RowsWritten(tuple(leases)))

    def list_own_parts(self, policy: KeyPolicy) -> tuple[LimitPart, ...]:
        """Return the limits that all requests of a key count in, in the order of the checks."""
        own = [part for scope in policy.scopes for part in self.list_parts(scope)]
        own.sort(key=lambda part: part.rank)
        return tuple(own)

    def list_provider_parts(self, provider: str) -> tuple[LimitPart, ...]:
        scopes = self.policies.find_provider_scopes(provider)
        return tuple(part for scope in scopes for part in self.list_parts(scope)) if scopes else ()

    def list_parts(self, scope: LimitedScope) -> tuple[LimitPart, ...]:
        """Return the limits of a scope, with their counters of this moment."""
        now, zone = self._now(), self.policies.time_zone
        known = self._parts.get(scope.name)
        if known is not None and known[0] is scope and known[1] is zone and now * 1000 < known[3]:
            return known[2]
        parts = tuple(make_parts(scope, now, zone))
        ends = [part.end_ms for part in parts if part.end_ms is not None]
        if len(self._parts) >= MAX_SCOPES:
            self._parts.clear()
        self._parts[scope.name] = (scope, zone, parts, min(ends, default=2**63))
        return parts

    def _find_blocked(self, lease: Lease, counter: str) -> RefusedBy:
        """Return what a request waited for that never asked: others stood before it."""
        part = next(part for part in lease.list_counted() if part.counter == counter)
        return RefusedBy(part, Hold(counter, part.kind, part.limit, 0), Refused(0, waits=True))

    def _describe(self, refused: RefusedBy) -> Failure:
        return describe_refusal(refused, self.policies.time_zone, self._spread)


MAX_SCOPES = 10_000  # of which the counters of this moment are kept


class _NoAnswer(Exception):
    """The meter did not answer in time."""


def _choose(first: RefusedBy | None, second: RefusedBy) -> RefusedBy:
    """Return the refusal to report: one after which waiting helps rather than one after which it does not."""
    return first if first is not None and not first.result.is_spent and second.result.is_spent else second


def find_levels(holds: Sequence[tuple[LimitPart, Hold]], remaining: Sequence[int], now: float) -> dict[str, RateLevel]:
    """Return what is left of requests and of tokens, of the scope that has least of it."""
    levels: dict[str, RateLevel] = {}
    for (part, hold), left in zip(holds, remaining, strict=False):
        unit = part.unit
        if unit not in ("requests", "tokens"):
            continue
        known = levels.get(unit)
        if known is None or left < known.remaining:
            levels[unit] = RateLevel(hold.limit, max(0, left), _reset_s(part, hold, left, now))
    return levels


def _reset_s(part: LimitPart, hold: Hold, left: int, now: float) -> float | None:
    if part.window is None:
        return 60.0 * (hold.limit - left) / hold.limit if hold.limit else 0.0
    return None if part.end_ms is None else max(0.0, part.end_ms / 1000 - now)

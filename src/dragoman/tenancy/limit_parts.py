"""One limit of a scope, as requests are checked against it: its counter, its window, and its place in the order."""

from collections.abc import Iterator
from datetime import tzinfo

from msgspec import Struct

from dragoman.config.limits import LimitName
from dragoman.store.meter import HoldKind
from dragoman.tenancy.policies import LimitedScope
from dragoman.tenancy.windows import Window, WindowKind, find_window, name_counter

ORDER = (  # in which limits are checked
    LimitName.REQUESTS_PER_MIN,
    LimitName.CONCURRENT,
    LimitName.TOKENS_PER_MIN,
    LimitName.TOKENS_PER_DAY,
    LimitName.TOKENS_PER_MONTH,
    LimitName.TOKENS_PER_TOTAL,
    LimitName.USD_PER_DAY,
    LimitName.USD_PER_WEEK,
    LimitName.USD_PER_MONTH,
    LimitName.USD_PER_TOTAL,
    LimitName.CREDITS_PER_MONTH,
)
RANKS = {name: rank for rank, name in enumerate(ORDER)}
KINDS = {LimitName.REQUESTS_PER_MIN: HoldKind.RATE, LimitName.TOKENS_PER_MIN: HoldKind.RATE}
KINDS |= {LimitName.CONCURRENT: HoldKind.SLOT, LimitName.CREDITS_PER_MONTH: HoldKind.CHECK}


class LimitPart(Struct, frozen=True):
    """One limit of a scope, and its counter in the window of this moment."""

    scope: LimitedScope
    name: LimitName
    limit: int
    counter: str
    window: Window | None  # None: of a rate or slots
    kind: HoldKind
    unit: str  # requests, concurrent, tokens, usd, credits
    rank: int  # in the order of the checks

    @property
    def end_ms(self) -> int | None:
        """When its window ends; None: it has none, or that never ends."""
        return None if self.window is None else self.window.end_ms


def make_parts(scope: LimitedScope, now: float, zone: tzinfo) -> Iterator[LimitPart]:
    """Yield the limits of a scope with their counters at this time, in Unix seconds."""
    for name, limit in scope.limits.items():
        kind, rank = KINDS.get(name, HoldKind.WINDOW), RANKS[name]
        unit, _, per = name.value.partition("_per_")
        if kind in (HoldKind.RATE, HoldKind.SLOT):
            yield LimitPart(scope, name, limit, f"{scope.name}:{name.value}", None, kind, unit, rank)
        else:
            window = find_window(WindowKind(per), now, zone)
            yield LimitPart(scope, name, limit, name_counter(scope.name, unit, window), window, kind, unit, rank)

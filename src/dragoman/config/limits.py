"""Limits: their names, their values as the file and the HTTP API write them, and as amounts in whole units.

Amounts are whole numbers: dollars in nanodollars, credits in nano-credits, tokens, requests.
"""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.config.problems import list_known, suggest

NANO = 10**9
DECIMALS = 9  # of dollars
MAX_DOLLARS = 10**9
MAX_WHOLE = 10**15
MAX_AMOUNT = 2**63 - 1  # what databases can hold; a larger limit is cut to it

WholeLimit = Annotated[int, Meta(ge=0, le=MAX_WHOLE)]
DollarLimit = Annotated[float, Meta(ge=0, le=MAX_DOLLARS)]


class LimitName(StrEnum):
    """What a limit bounds; also its name in the file, the HTTP API and the commands."""

    REQUESTS_PER_MIN = "requests_per_min"
    TOKENS_PER_MIN = "tokens_per_min"
    CONCURRENT = "concurrent"
    USD_PER_DAY = "usd_per_day"
    USD_PER_WEEK = "usd_per_week"
    USD_PER_MONTH = "usd_per_month"
    USD_PER_TOTAL = "usd_per_total"
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"
    TOKENS_PER_TOTAL = "tokens_per_total"
    CREDITS_PER_MONTH = "credits_per_month"

    @property
    def is_usd(self) -> bool:
        return self.startswith("usd_")

    @property
    def scale(self) -> int:
        """How many of the amount's units make one of the limit's own unit."""
        return NANO if self.is_usd or self is LimitName.CREDITS_PER_MONTH else 1


class LimitValues(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits in their own units: dollars, credits, tokens, requests. None is no limit, 0 allows nothing."""

    requests_per_min: WholeLimit | None = None
    tokens_per_min: WholeLimit | None = None
    concurrent: WholeLimit | None = None
    usd_per_day: DollarLimit | None = None
    usd_per_week: DollarLimit | None = None
    usd_per_month: DollarLimit | None = None
    usd_per_total: DollarLimit | None = None
    tokens_per_day: WholeLimit | None = None
    tokens_per_month: WholeLimit | None = None
    tokens_per_total: WholeLimit | None = None
    credits_per_month: WholeLimit | None = None


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one scope as amounts. None is no limit, 0 allows nothing."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    concurrent: int | None = None
    usd_per_day: int | None = None
    usd_per_week: int | None = None
    usd_per_month: int | None = None
    usd_per_total: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    tokens_per_total: int | None = None
    credits_per_month: int | None = None

    def __bool__(self) -> bool:
        """Return whether there is any limit."""
        return self != NO_LIMITS

    def items(self) -> Iterator[tuple[LimitName, int]]:
        """Yield the limits that are set."""
        for name in LimitName:
            amount = self.get(name)
            if amount is not None:
                yield name, amount

    def get(self, name: LimitName) -> int | None:
        found: int | None = getattr(self, name.value)
        return found

    def fill(self, defaults: "Limits") -> "Limits":
        """Return these limits, and those of `defaults` where there is none."""
        return self.change({name: amount for name, amount in defaults.items() if self.get(name) is None})

    def change(self, amounts: Mapping[LimitName, int | None]) -> "Limits":
        """Return these limits with the named ones replaced; None removes one."""
        return replace(self, **{name.value: amount for name, amount in amounts.items()}) if amounts else self


NO_LIMITS = Limits()


class InvalidLimit(ValueError):
    """A value that its type allows is not a valid limit. `name` is the limit's."""

    def __init__(self, name: LimitName, message: str) -> None:
        super().__init__(message)
        self.name = name


def parse_limit_name(name: str) -> LimitName:
    """Return the limit of this name; raises ValueError with the nearest names."""
    try:
        return LimitName(name)
    except ValueError:
        known = [one.value for one in LimitName]
        others = suggest(name, known) or list_known(known, "limits")
        raise ValueError(f"there is no such limit{others}") from None


def to_limits(values: LimitValues) -> Limits:
    """Return limits as amounts; raises InvalidLimit.

    Dollars are taken by their shortest decimal text, so that 0.1 is exactly 100,000,000 nanodollars.
    """
    amounts: dict[LimitName, int | None] = {}
    for name in LimitName:
        value: float | None = getattr(values, name.value)
        if value is not None:
            amounts[name] = _to_amount(name, value)
    return NO_LIMITS.change(amounts)


def _to_amount(name: LimitName, value: float) -> int:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidLimit(name, f"expected a number from 0 to {MAX_DOLLARS}, got {value}")
    scaled = Decimal(str(value)) * name.scale
    if scaled != scaled.to_integral_value():
        raise InvalidLimit(name, f"expected at most {DECIMALS} decimals, got {value}")
    return min(int(scaled), MAX_AMOUNT)


def format_amount(name: LimitName, amount: int) -> int | float:
    """Return an amount in the limit's own unit: a whole number where it is one, else with a fraction."""
    whole, rest = divmod(amount, name.scale)
    return whole if rest == 0 else float(Decimal(amount) / name.scale)


def to_values(limits: Limits) -> dict[str, int | float]:
    """Return the limits that are set, by their names, in their own units."""
    return {name.value: format_amount(name, amount) for name, amount in limits.items()}


def encode_limits(limits: Limits) -> str:
    """Return limits as the store keeps them: JSON of the amounts that are set."""
    return msgspec.json.encode({name.value: amount for name, amount in limits.items()}).decode()


def decode_limits(stored: str) -> Limits:
    """Return limits that the store has; those that this version does not know are left out."""
    return msgspec.json.decode(stored, type=Limits) if stored else NO_LIMITS

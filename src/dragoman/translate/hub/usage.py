"""Token counts, with one definition for all protocols: input includes cached tokens, output includes reasoning."""

import math
from collections.abc import Iterable
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger

MAX_COUNT = 10**10  # of one request: an upstream's absurd count must not break the sums over all rows
MAX_CREDITS = 1e12  # likewise: the sum of two huge floats overflows


class UsageSource(Enum):
    """How a usage was determined, the most reliable source first."""

    REPORTED = "reported"
    DERIVED = "derived"
    ESTIMATED = "estimated"


class Usage(Struct, frozen=True, gc=False):
    input: int = 0  # total: fresh + read from cache + written to cache
    output: int = 0  # total: visible + reasoning
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0  # the part of cache_write that is kept for an hour
    reasoning: int = 0
    web_searches: int = 0
    web_fetches: int = 0
    context: int | None = None  # input plus output, where the upstream reports only that (then DERIVED)
    credits: float | None = None
    service_tier: str | None = None  # in OpenAI's spelling
    source: UsageSource = UsageSource.REPORTED
    later_input: int = 0  # the part of input that rounds after the first have read

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum of two usages, with the less reliable source of the two."""
        credits = [usage.credits for usage in (self, other) if usage.credits is not None]
        has_contexts = self.context is not None and other.context is not None
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            cache_write_1h=self.cache_write_1h + other.cache_write_1h,
            reasoning=self.reasoning + other.reasoning,
            web_searches=self.web_searches + other.web_searches,
            web_fetches=self.web_fetches + other.web_fetches,
            context=(self.context or 0) + (other.context or 0) if has_contexts else None,
            credits=sum(credits) if credits else None,
            service_tier=other.service_tier,
            source=max(self.source, other.source, key=list(UsageSource).index),
            later_input=self.later_input + other.later_input,
        )

    @property
    def fresh(self) -> int:
        """Return the input that was neither read from nor written to a cache: Anthropic's input_tokens."""
        return max(0, self.input - self.cache_read - self.cache_write)


def sum_usages(usages: Iterable[Usage]) -> Usage | None:
    """Return the sum; None without any."""
    total: Usage | None = None
    for usage in usages:
        total = usage if total is None else total + usage
    return total


def clamp_usage(usage: Usage, ledger: Ledger) -> Usage:
    """Return the usage with every count between 0 and its limit. A changed usage is no longer `reported`."""
    counts = (
        usage.input, usage.output, usage.cache_read, usage.cache_write, usage.cache_write_1h, usage.reasoning,
        usage.web_searches, usage.context or 0,
    )  # fmt: skip
    sane = min(counts) >= 0 and max(counts) <= MAX_COUNT and usage.cache_write_1h <= usage.cache_write
    if sane and (usage.credits is None or 0 <= usage.credits <= MAX_CREDITS):
        return usage
    written = _clamp(usage.cache_write)
    credits = usage.credits
    clamped = replace(
        usage,
        input=_clamp(usage.input),
        output=_clamp(usage.output),
        cache_read=_clamp(usage.cache_read),
        cache_write=written,
        cache_write_1h=min(_clamp(usage.cache_write_1h), written),
        reasoning=_clamp(usage.reasoning),
        web_searches=_clamp(usage.web_searches),
        context=None if usage.context is None else _clamp(usage.context),
        credits=None if credits is None or math.isnan(credits) else min(max(credits, 0.0), MAX_CREDITS),
    )
    return mark_clamped(clamped, ledger)


def mark_clamped(usage: Usage, ledger: Ledger) -> Usage:
    """Return the usage as derived instead of reported, and note this in the ledger."""
    ledger.record_approximated("/usage", f"impossible counts are clamped to the range from 0 to {MAX_COUNT}")
    return replace(usage, source=UsageSource.DERIVED) if usage.source is UsageSource.REPORTED else usage


def _clamp(count: int) -> int:
    return min(max(count, 0), MAX_COUNT)

"""Rates in whole picodollars and a Usage come in; a cost in whole nanodollars goes out."""

from datetime import date, datetime, time

from msgspec import Struct

from dragoman.hub.usage import Usage

Price = int | tuple[int, ...]  # or (base, tokens, the price above them, ...): all tokens cost the same

NANO = 1000  # picodollars


class Rates(Struct, frozen=True, omit_defaults=True):
    """What one of each costs. What has no price of its own is charged as what it is a part of."""

    input: Price | None = None
    cache_read: Price | None = None
    cache_write: Price | None = None
    cache_write_1h: Price | None = None
    output: Price | None = None
    reasoning: Price | None = None
    web_search: Price | None = None
    request: Price | None = None
    since: date | None = None
    hours: str | None = None  # "00:30-16:30", UTC
    tier: str | None = None

    def holds(self, moment: datetime) -> bool:
        if self.since is not None and moment.date() < self.since:
            return False
        if self.hours is None:
            return True
        begin, end = map(time.fromisoformat, self.hours.split("-"))
        now = moment.time()
        return begin <= now < end if begin <= end else now >= begin or now < end


def cost_nano(rates: Rates, usage: Usage) -> int:
    """Exact, and rounded once at the end."""
    size = usage.input
    fresh, written = usage.input, usage.cache_write
    pico = 0
    if rates.cache_read is not None:
        fresh -= usage.cache_read
        pico += _at(rates.cache_read, size) * usage.cache_read
    if rates.cache_write_1h is not None:
        fresh -= usage.cache_write_1h
        written -= usage.cache_write_1h
        pico += _at(rates.cache_write_1h, size) * usage.cache_write_1h
    if rates.cache_write is not None:
        fresh -= written
        pico += _at(rates.cache_write, size) * max(0, written)
    said = usage.output
    if rates.reasoning is not None:
        said -= usage.reasoning
        pico += _at(rates.reasoning, size) * usage.reasoning
    pico += _at(rates.input, size) * max(0, fresh)
    pico += _at(rates.output, size) * max(0, said)
    pico += _at(rates.web_search, size) * usage.web_searches
    pico += _at(rates.request, size)
    return (pico + NANO // 2) // NANO


def _at(price: Price | None, size: int) -> int:
    """What applies to a request with an input of this size."""
    if price is None:
        return 0
    if isinstance(price, int):
        return price
    applies = price[0]
    for above, then in zip(price[1::2], price[2::2], strict=True):
        if size > above:
            applies = then
    return applies

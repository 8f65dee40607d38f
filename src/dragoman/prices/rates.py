"""Compute a cost in whole nanodollars from rates in whole picodollars."""

from datetime import date, datetime, time

from msgspec import Struct

from dragoman.hub.usage import Usage

Price = (
    int | tuple[int, ...]
)  # (base, threshold, price, ...): an input above the threshold costs that price for all tokens

PICO_PER_NANO = 1000  # picodollars


class Rates(Struct, frozen=True, omit_defaults=True):
    """Prices of single tokens, searches and requests, and when they apply.

    Tokens without a price of their own are charged as what includes them: reasoning as output, cached as input.
    """

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

    def apply_at(self, moment: datetime) -> bool:
        """Whether these are the prices of this time (UTC)."""
        if self.since is not None and moment.date() < self.since:
            return False
        if self.hours is None:
            return True
        begin, end = map(time.fromisoformat, self.hours.split("-"))
        now = moment.time()
        return begin <= now < end if begin <= end else now >= begin or now < end


def cost_nano(rates: Rates, usage: Usage) -> int:
    """Return the cost, rounded once at the end."""
    size = usage.input
    fresh, written = usage.input, usage.cache_write
    pico = 0
    if rates.cache_read is not None:
        fresh -= usage.cache_read
        pico += _price_at(rates.cache_read, size) * usage.cache_read
    if rates.cache_write_1h is not None:
        fresh -= usage.cache_write_1h
        written -= usage.cache_write_1h
        pico += _price_at(rates.cache_write_1h, size) * usage.cache_write_1h
    if rates.cache_write is not None:
        fresh -= written
        pico += _price_at(rates.cache_write, size) * max(0, written)
    visible = usage.output
    if rates.reasoning is not None:
        visible -= usage.reasoning
        pico += _price_at(rates.reasoning, size) * usage.reasoning
    pico += _price_at(rates.input, size) * max(0, fresh)
    pico += _price_at(rates.output, size) * max(0, visible)
    pico += _price_at(rates.web_search, size) * usage.web_searches
    pico += _price_at(rates.request, size)
    return (pico + PICO_PER_NANO // 2) // PICO_PER_NANO


def _price_at(price: Price | None, size: int) -> int:
    """Return the price for a request with so many input tokens."""
    if price is None:
        return 0
    if isinstance(price, int):
        return price
    found = price[0]
    for threshold, higher in zip(price[1::2], price[2::2], strict=True):
        if size > threshold:
            found = higher
    return found

"""Find the price of a model and compute the cost of a request."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from dragoman.config.settings import PriceOverride, ProviderConfig
from dragoman.hub.outcome import OK, Outcome
from dragoman.hub.server_tools import SEARCH
from dragoman.hub.usage import Usage
from dragoman.prices.sheet import Model, Price, Rates, find_model, utc_datetime, vendor_of_endpoint

PICO_PER_NANO = 1000
PICO_PER_TOKEN = 10**6  # one dollar per million tokens, in picodollars per token
VENDOR_OF_KIND = {"anthropic": "anthropic", "openai": "openai", "gemini": "google", "copilot": "github-copilot"}
UNPRICED_KINDS = ("echo",)
MAX_REMEMBERED = 1000
# Families that only one vendor sells; models with open weights have many vendors and prices.
FAMILIES = (
    (re.compile(r"claude[-.\d]"), "anthropic"),
    (re.compile(r"gpt-(?!oss)|chatgpt-|codex-|o[1-9](-|$)"), "openai"),
    (re.compile(r"gemini-"), "google"),
    (re.compile(r"grok-"), "x-ai"),
)
REGION_AND_VENDOR = re.compile(r"^(?:[a-z]{2,6}\.)?(?:anthropic|amazon|openai|google|xai)\.")
REVISION = re.compile(r"(?:-v\d+(?:[:.-]\d+)?)?(?:\[\w+\])?$")


class UsdPerMillion(Struct, frozen=True):
    """Prices in US dollars per million tokens; a cache price that is None is that of other input."""

    input: float | None
    output: float | None
    cache_read: float | None
    cache_write: float | None


class Pricing:
    """Prices of all providers.

    Overrides of the configuration come first, then the price sheet of the vendor that the provider's address, its
    kind or the model's family names.
    """

    def __init__(
        self,
        providers: Mapping[str, ProviderConfig],
        overrides: Sequence[PriceOverride] = (),
        usd_per_1000_searches: float = 0.0,
    ) -> None:
        self._providers = providers
        self._overrides = [(override.model, _rates_of_override(override)) for override in overrides]
        self._search_nano = round(usd_per_1000_searches * 10**6)  # for each search
        self._rates: dict[tuple[str, str, str | None, float], Rates | None] = {}  # by model, tier and minute

    def cost_nano(self, outcome: Outcome) -> int | None:
        """Return the cost in nanodollars, of tokens and of searches; None where neither has a known price."""
        tokens = self._cost_of_tokens(outcome)
        if not outcome.tool_runs or not self._search_nano:
            return tokens
        searches = sum(run.tool == SEARCH and run.result == OK for run in outcome.tool_runs)
        return (tokens or 0) + searches * self._search_nano if searches else tokens

    def usd_per_million(self, provider: str, model: str, at: float) -> "UsdPerMillion | None":
        """Return the prices of a small request's tokens at a time in Unix seconds; None if they are not known."""
        found = self._find(provider, model)
        rates = found.at(utc_datetime(at)) if isinstance(found, Model) else found
        if rates is None:
            return None
        prices = (rates.input, rates.output, rates.cache_read, rates.cache_write)
        return UsdPerMillion(*(None if price is None else _price_at(price, 0) / PICO_PER_TOKEN for price in prices))

    def _cost_of_tokens(self, outcome: Outcome) -> int | None:
        usage = outcome.usage
        if usage is None or not outcome.provider:
            return None
        # Rates change at whole minutes. Finding them takes several times as long as the rest.
        key = (outcome.provider, outcome.model, usage.service_tier, outcome.started_at // 60)
        try:
            rates = self._rates[key]
        except KeyError:
            if len(self._rates) >= MAX_REMEMBERED:
                self._rates.clear()
            found = self._find(outcome.provider, outcome.model)
            if isinstance(found, Model):
                found = found.at(utc_datetime(outcome.started_at), usage.service_tier)
            rates = self._rates[key] = found
        return None if rates is None else cost_nano(rates, usage)

    def _find(self, provider: str, model: str) -> Rates | Model | None:
        for pattern, rates in self._overrides:
            if fnmatchcase(f"{provider}/{model}", pattern) or fnmatchcase(model, pattern):
                return rates
        config = self._providers.get(provider)
        if config is None or config.kind in UNPRICED_KINDS:
            return None
        names = _list_spellings(model)
        vendor = vendor_of_endpoint(config.endpoint) if config.endpoint else None
        for sheet in dict.fromkeys((vendor, VENDOR_OF_KIND.get(config.kind))):
            for name in names if sheet else ():
                listed = find_model(sheet, name) if sheet else None
                if listed is not None:
                    return listed
        return None if vendor else _find_by_family(names)


def _find_by_family(names: Sequence[str]) -> Model | None:
    for name in names:
        for family, vendor in FAMILIES:
            if family.match(name):
                return find_model(vendor, name)
    return None


def _list_spellings(model: str) -> list[str]:
    """Return the spellings that a vendor may use for a model, the likeliest first."""
    name = model.lower()
    last = name.rpartition("/")[2]
    plain = REVISION.sub("", REGION_AND_VENDOR.sub("", last))
    return list(dict.fromkeys((name, last, plain, REVISION.sub("", plain.replace("_", "-")))))


def _rates_of_override(override: PriceOverride) -> Rates:
    read, write = override.cache_read, override.cache_write
    return Rates(
        input=_to_picodollars(override.input),
        output=_to_picodollars(override.output),
        cache_read=None if read is None else _to_picodollars(read),
        cache_write=None if write is None else _to_picodollars(write),
    )


def _to_picodollars(dollars_per_million: float) -> int:
    return round(dollars_per_million * PICO_PER_TOKEN)


def cost_nano(rates: Rates, usage: Usage) -> int:
    """Return the cost, rounded once at the end."""
    size = fresh = usage.input
    visible = usage.output
    pico = 0
    # Every request pays for this, and most have neither of these.
    if usage.cache_read and rates.cache_read is not None:
        fresh -= usage.cache_read
        pico += _price_at(rates.cache_read, size) * usage.cache_read
    if usage.cache_write or usage.cache_write_1h:
        fresh, cost_of_writes = _price_cache_writes(rates, usage, fresh)
        pico += cost_of_writes
    if usage.reasoning and rates.reasoning is not None:
        visible -= usage.reasoning
        pico += _price_at(rates.reasoning, size) * usage.reasoning
    if usage.web_searches:
        pico += _price_at(rates.web_search, size) * usage.web_searches
    if rates.request is not None:
        pico += _price_at(rates.request, size)
    if fresh > 0:
        price = rates.input
        pico += (price if isinstance(price, int) else _price_at(price, size)) * fresh
    if visible > 0:
        price = rates.output
        pico += (price if isinstance(price, int) else _price_at(price, size)) * visible
    return (pico + PICO_PER_NANO // 2) // PICO_PER_NANO


def _price_cache_writes(rates: Rates, usage: Usage, fresh: int) -> tuple[int, int]:
    """Return the input without what was written to a cache at a price of its own, and the cost of that."""
    written, pico = usage.cache_write, 0
    if rates.cache_write_1h is not None:
        fresh -= usage.cache_write_1h
        written -= usage.cache_write_1h
        pico += _price_at(rates.cache_write_1h, usage.input) * usage.cache_write_1h
    if rates.cache_write is not None:
        fresh -= written
        pico += _price_at(rates.cache_write, usage.input) * max(0, written)
    return fresh, pico


def _price_at(price: Price | None, size: int) -> int:
    """Return the price for a request with so many input tokens."""
    if isinstance(price, int):
        return price
    if price is None:
        return 0
    found = price[0]
    for threshold, higher in zip(price[1::2], price[2::2], strict=True):
        if size > threshold:
            found = higher
    return found

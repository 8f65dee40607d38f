"""Find the price of a model, in the sheet that is part of this package, and compute the cost of a request."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

from dragoman.config.settings import PriceOverride, ProviderConfig
from dragoman.proxy.outcome import OK, Outcome, TurnUsage
from dragoman.proxy.ports import PricedTarget
from dragoman.tenancy.reservation import RequestSize
from dragoman.translate.hub.server_tools import SEARCH
from dragoman.translate.hub.usage import Usage

# Or (base, threshold, price, ...): a request with more input tokens than the threshold costs that price for each.
Price = int | tuple[int, ...]
Match = str | list["Match"]

COMPACT_DATE = re.compile(r"-(20\d\d)(\d\d)(\d\d)(?=-|:|$)")
OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda name, text: name == text,
    "^": lambda name, text: name.startswith(text),
    "$": lambda name, text: name.endswith(text),
    "*": lambda name, text: text in name,
}


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


RATE_NAMES = [name for name in Rates.__struct_fields__ if name not in ("since", "hours", "tier")]


@final
class PricedModel(Struct, frozen=True):
    """A model and its rates: the last whose condition is met, else the first."""

    id: str
    match: Raw
    rates: tuple[Rates, ...]
    tiers: tuple[Rates, ...] = ()

    def matches(self, name: str) -> bool:
        return _matches(msgspec.json.decode(self.match), name)

    def at(self, moment: datetime, tier: str | None = None) -> Rates:
        """Return the rates at a time (UTC), with those of a service tier if it has its own."""
        valid = [rates for rates in self.rates if rates.apply_at(moment)]
        found = valid[-1] if valid else self.rates[0]
        for special in self.tiers:
            if special.tier == tier and special.apply_at(moment):
                own = {
                    name: value for name, value in asdict(special).items() if name in RATE_NAMES and value is not None
                }
                return replace(found, **own)
        return found


class Vendor(Struct, frozen=True):
    hosts: str
    models: Raw


class Sheet(Struct, frozen=True):
    source: str
    licence: str
    vendors: dict[str, Vendor]


@lru_cache(maxsize=1)
def load_sheet() -> Sheet:
    """Read the sheet, at the first cost that is computed."""
    from importlib.resources import files  # 1 MB

    return msgspec.json.decode((files("dragoman.operate.prices") / "sheet.json").read_bytes(), type=Sheet)


@lru_cache(maxsize=32)
def list_models(vendor: str) -> tuple[PricedModel, ...]:
    return msgspec.json.decode(load_sheet().vendors[vendor].models, type=tuple[PricedModel, ...])


@lru_cache(maxsize=64)
def vendor_of_endpoint(endpoint: str) -> str | None:
    """Return the vendor whose address this is."""
    return next((name for name, vendor in load_sheet().vendors.items() if re.match(vendor.hosts, endpoint)), None)


@lru_cache(maxsize=1024)
def find_model(vendor: str, name: str) -> PricedModel | None:
    """Return a vendor's model by its name, whose date may be written with or without dashes."""
    for spelling in dict.fromkeys((name, COMPACT_DATE.sub(_insert_dashes, name))):
        for model in list_models(vendor):
            if model.matches(spelling):
                return model
    return None


def utc_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _matches(match: Match, name: str) -> bool:
    if isinstance(match, list):
        how, *parts = match
        found = (_matches(part, name) for part in parts)
        return any(found) if how == "or" else all(found)
    kind, text = match[0], match[1:]
    if kind == "~":
        return re.search(text, name) is not None
    return OPERATORS[kind](name, text)


def _insert_dashes(found: re.Match[str]) -> str:
    year, month, day = found.groups()
    try:
        return f"-{date(int(year), int(month), int(day)).isoformat()}"
    except ValueError:
        return found[0]


PICO_PER_NANO = 1000
NO_USAGE = Usage()
PICO_PER_DOLLAR = 10**12
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
        if outcome.charged_nano is not None:
            return outcome.charged_nano
        if not outcome.tool_runs and not outcome.turns:
            return self._cost_of_tokens(outcome, outcome.usage)
        searches, usage = sum(run.tool == SEARCH and run.result == OK for run in outcome.tool_runs), outcome.usage
        if outcome.turns:
            costs = [self.price_turn(turn, outcome.started_at) for turn in outcome.turns]
            known = [cost for cost in costs if cost is not None]
            tokens = sum(known) if known else None
        else:
            if usage is not None:  # the vendor is paid for its own searches
                usage = replace(usage, web_searches=max(0, usage.web_searches - searches))
            tokens = self._cost_of_tokens(outcome, usage)
        return (tokens or 0) + searches * self._search_nano if searches and self._search_nano else tokens

    def price(self, outcome: Outcome) -> tuple[int | None, int | None]:
        """Return `cost_nano` and `saved_nano`, whose rates are mostly the same."""
        usage, is_charged = outcome.usage, outcome.charged_nano is not None
        if usage is None or not outcome.provider or outcome.turns or outcome.tool_runs or is_charged:
            return self.cost_nano(outcome), self.saved_nano(outcome)
        rates = self._find_rates(outcome.provider, outcome.model, usage.service_tier, outcome.started_at)
        return (None, None) if rates is None else (cost_nano(rates, usage), _saved_nano(rates, usage))

    def saved_nano(self, outcome: Outcome) -> int | None:
        """Return what the prompt cache has saved, in nanodollars; negative where writing cost more than was read.

        It is compared with the same input without a cache. None: without a known price.
        """
        usage = outcome.usage
        if usage is None or not outcome.provider:
            return None
        rates = self._find_rates(outcome.provider, outcome.model, usage.service_tier, outcome.started_at)
        return None if rates is None else _saved_nano(rates, usage)

    def price_turn(self, turn: TurnUsage, at: float) -> int | None:
        """Return what one upstream request has cost that began at this time, in Unix seconds."""
        rates = self._find_rates(turn.provider, turn.model, turn.usage.service_tier, at)
        return None if rates is None else cost_nano(rates, turn.usage)

    def find_size(self, target: PricedTarget, input_tokens: int, max_tokens: int | None) -> RequestSize | None:
        """Return what a request of this size may cost; None if the target has no price for it."""
        rates = self._find_rates(target.provider, target.model, None, target.at)
        if rates is None or (not target.is_charged_by_tokens and rates.request is None):
            return None
        read, written = _nano_at(rates.input, input_tokens), _nano_at(rates.output, input_tokens)
        writes = (_nano_at(price, input_tokens) for price in (rates.cache_write, rates.cache_write_1h))
        return RequestSize(
            input_tokens=input_tokens,
            input_price=read,
            cache_write_price=max(read, *writes),
            output_price=max(written, _nano_at(rates.reasoning, input_tokens)),
            request_price=round(_nano_at(rates.request, input_tokens)),
            max_tokens=max_tokens,
        )

    def usd_per_million(self, provider: str, model: str, at: float) -> UsdPerMillion | None:
        """Return the prices of a small request's tokens at a time in Unix seconds; None if they are not known."""
        found = self._find(provider, model)
        rates = found.at(utc_datetime(at)) if isinstance(found, PricedModel) else found
        if rates is None:
            return None
        prices = (rates.input, rates.output, rates.cache_read, rates.cache_write)
        return UsdPerMillion(*(None if price is None else _price_at(price, 0) / PICO_PER_TOKEN for price in prices))

    def _cost_of_tokens(self, outcome: Outcome, usage: Usage | None) -> int | None:
        if usage is None:
            return self._cost_of_request(outcome)
        if not outcome.provider:
            return None
        rates = self._find_rates(outcome.provider, outcome.model, usage.service_tier, outcome.started_at)
        return None if rates is None else cost_nano(rates, usage)

    def _cost_of_request(self, outcome: Outcome) -> int | None:
        """Return what a reply without tokens costs, where the request itself has a price."""
        if not outcome.provider or not outcome.is_answered or outcome.outcome != OK:
            return None
        rates = self._find_rates(outcome.provider, outcome.model, None, outcome.started_at)
        return None if rates is None or rates.request is None else cost_nano(rates, NO_USAGE)

    def _find_rates(self, provider: str, model: str, tier: str | None, at: float) -> Rates | None:
        # Rates change at whole minutes. Finding them takes several times as long as the rest.
        key = (provider, model, tier, at // 60)
        try:
            rates = self._rates[key]
        except KeyError:
            if len(self._rates) >= MAX_REMEMBERED:
                self._rates.clear()
            found = self._find(provider, model)
            if isinstance(found, PricedModel):
                found = found.at(utc_datetime(at), tier)
            rates = self._rates[key] = found
        return rates

    def _find(self, provider: str, model: str) -> Rates | PricedModel | None:
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


def _find_by_family(names: Sequence[str]) -> PricedModel | None:
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
    read, write, write_1h = override.cache_read, override.cache_write, override.cache_write_1h
    return Rates(
        input=_to_picodollars(override.input),
        output=_to_picodollars(override.output),
        cache_read=None if read is None else _to_picodollars(read),
        cache_write=None if write is None else _to_picodollars(write),
        cache_write_1h=None if write_1h is None else _to_picodollars(write_1h),
        request=None if override.request is None else round(override.request * PICO_PER_DOLLAR),
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


def _saved_nano(rates: Rates, usage: Usage) -> int:
    if not usage.cache_read and not usage.cache_write:
        return 0
    uncached = replace(usage, cache_read=0, cache_write=0, cache_write_1h=0)
    return cost_nano(rates, uncached) - cost_nano(rates, usage)


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


def _nano_at(price: Price | None, size: int) -> float:
    return _price_at(price, size) / PICO_PER_NANO


def _price_at(price: Price | None, size: int) -> int:
    """Return the price for a request with this number of input tokens."""
    if isinstance(price, int):
        return price
    if price is None:
        return 0
    found = price[0]
    for threshold, higher in zip(price[1::2], price[2::2], strict=True):
        if size > threshold:
            found = higher
    return found

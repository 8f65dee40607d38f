"""The price sheet that is part of this package: the rates of each vendor's models."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from functools import lru_cache
from typing import final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

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
class Model(Struct, frozen=True):
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

    return msgspec.json.decode((files("dragoman.prices") / "sheet.json").read_bytes(), type=Sheet)


@lru_cache(maxsize=32)
def list_models(vendor: str) -> tuple[Model, ...]:
    return msgspec.json.decode(load_sheet().vendors[vendor].models, type=tuple[Model, ...])


@lru_cache(maxsize=64)
def vendor_of_endpoint(endpoint: str) -> str | None:
    """Return the vendor whose address this is."""
    return next((name for name, vendor in load_sheet().vendors.items() if re.match(vendor.hosts, endpoint)), None)


@lru_cache(maxsize=1024)
def find_model(vendor: str, name: str) -> Model | None:
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

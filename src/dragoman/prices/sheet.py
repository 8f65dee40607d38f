"""The price sheet that ships with us: a vendor and a model's name come in; the rates of a moment go out."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import lru_cache
from importlib.resources import files

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

from dragoman.prices.rates import Rates

Match = str | list["Match"]

COMPACT_DATE = re.compile(r"-(20\d\d)(\d\d)(\d\d)(?=-|:|$)")
TESTS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda name, text: name == text,
    "^": lambda name, text: name.startswith(text),
    "$": lambda name, text: name.endswith(text),
    "*": lambda name, text: text in name,
}
RATES = [name for name in Rates.__struct_fields__ if name not in ("since", "hours", "tier")]


class Model(Struct, frozen=True):
    """The rate that holds is the last whose condition is met, else the first."""

    id: str
    match: Raw
    rates: tuple[Rates, ...]
    tiers: tuple[Rates, ...] = ()

    def is_called(self, name: str) -> bool:
        return _matches(msgspec.json.decode(self.match), name)

    @property
    def fixed(self) -> Rates | None:
        """Its only rates, where neither time nor tier changes them."""
        (first, *others), tiers = self.rates, self.tiers
        conditional = others or tiers or first.since is not None or first.hours is not None
        return None if conditional else first

    def at(self, moment: datetime, tier: str | None = None) -> Rates:
        """The rates of a moment (UTC), for a service tier if it has its own."""
        holding = [rates for rates in self.rates if rates.holds(moment)]
        found = holding[-1] if holding else self.rates[0]
        for special in self.tiers:
            if special.tier == tier and special.holds(moment):
                own = {name: value for name, value in asdict(special).items() if name in RATES and value is not None}
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
def sheet() -> Sheet:
    """Read when the first cost is asked for."""
    return msgspec.json.decode((files("dragoman.prices") / "sheet.json").read_bytes(), type=Sheet)


@lru_cache(maxsize=32)
def models_of(vendor: str) -> tuple[Model, ...]:
    return msgspec.json.decode(sheet().vendors[vendor].models, type=tuple[Model, ...])


@lru_cache(maxsize=64)
def vendor_at(endpoint: str) -> str | None:
    """Whose address this is."""
    return next((name for name, vendor in sheet().vendors.items() if re.match(vendor.hosts, endpoint)), None)


@lru_cache(maxsize=1024)
def find(vendor: str, name: str) -> Model | None:
    """A vendor's model of this name, whatever its date is written like."""
    for spelling in dict.fromkeys((name, COMPACT_DATE.sub(_with_dashes, name))):
        for model in models_of(vendor):
            if model.is_called(spelling):
                return model
    return None


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _matches(match: Match, name: str) -> bool:
    if isinstance(match, list):
        how, *parts = match
        found = (_matches(part, name) for part in parts)
        return any(found) if how == "or" else all(found)
    kind, text = match[0], match[1:]
    if kind == "~":
        return re.search(text, name) is not None
    return TESTS[kind](name, text)


def _with_dashes(found: re.Match[str]) -> str:
    year, month, day = found.groups()
    try:
        return f"-{date(int(year), int(month), int(day)).isoformat()}"
    except ValueError:
        return found[0]

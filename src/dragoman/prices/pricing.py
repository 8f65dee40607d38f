"""The configured providers and prices come in; then each outcome, and what it cost goes out."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from dragoman.config.settings import PriceOverride, ProviderConfig
from dragoman.hub.outcome import Outcome
from dragoman.prices.rates import Rates, cost_nano
from dragoman.prices.sheet import Model, find, utc, vendor_at

PICO_PER_TOKEN = 10**6  # in a dollar per million tokens
OWN_SHEET = {"anthropic": "anthropic", "openai": "openai", "gemini": "google", "copilot": "github-copilot"}
FREE_OF_PRICE = ("echo",)
# Families that one vendor alone sells; open weights are served by many, at many prices.
FAMILIES = (
    (re.compile(r"claude[-.\d]"), "anthropic"),
    (re.compile(r"gpt-(?!oss)|chatgpt-|codex-|o[1-9](-|$)"), "openai"),
    (re.compile(r"gemini-"), "google"),
    (re.compile(r"grok-"), "x-ai"),
)
REGION_AND_VENDOR = re.compile(r"^(?:[a-z]{2,6}\.)?(?:anthropic|amazon|openai|google|xai)\.")
REVISION = re.compile(r"(?:-v\d+(?:[:.-]\d+)?)?(?:\[\w+\])?$")


class Pricing:
    """Overrides first; then the sheet, by the provider's address, its kind, or the model's family."""

    def __init__(self, providers: Mapping[str, ProviderConfig], overrides: Sequence[PriceOverride] = ()) -> None:
        self._providers = providers
        self._overrides = [(override.model, _rates(override)) for override in overrides]
        self._known: dict[tuple[str, str], Rates | Model | None] = {}

    def cost_nano(self, outcome: Outcome) -> int | None:
        """In 10**-9 US dollars; None where nothing was counted or the model has no known price."""
        if outcome.usage is None or not outcome.provider:
            return None
        asked = (outcome.provider, outcome.model)
        if asked not in self._known:
            if len(self._known) >= 1000:
                self._known.clear()
            found = self._found(*asked)
            self._known[asked] = found.fixed or found if isinstance(found, Model) else found
        known = self._known[asked]
        if isinstance(known, Model):
            known = known.at(utc(outcome.started_at), outcome.usage.service_tier)
        return None if known is None else cost_nano(known, outcome.usage)

    def _found(self, provider: str, model: str) -> Rates | Model | None:
        for pattern, rates in self._overrides:
            if fnmatchcase(f"{provider}/{model}", pattern) or fnmatchcase(model, pattern):
                return rates
        config = self._providers.get(provider)
        if config is None or config.kind in FREE_OF_PRICE:
            return None
        names = _spellings(model)
        vendor = vendor_at(config.endpoint) if config.endpoint else None
        for sheet in dict.fromkeys((vendor, OWN_SHEET.get(config.kind))):
            for name in names if sheet else ():
                listed = find(sheet, name) if sheet else None
                if listed is not None:
                    return listed
        return None if vendor else _by_family(names)


def _by_family(names: Sequence[str]) -> Model | None:
    for name in names:
        for family, vendor in FAMILIES:
            if family.match(name):
                return find(vendor, name)
    return None


def _spellings(model: str) -> list[str]:
    """A model's name as its vendor may write it, the likeliest first."""
    name = model.lower()
    last = name.rpartition("/")[2]
    plain = REVISION.sub("", REGION_AND_VENDOR.sub("", last))
    return list(dict.fromkeys((name, last, plain, REVISION.sub("", plain.replace("_", "-")))))


def _rates(override: PriceOverride) -> Rates:
    read, write = override.cache_read, override.cache_write
    return Rates(
        input=_pico(override.input),
        output=_pico(override.output),
        cache_read=None if read is None else _pico(read),
        cache_write=None if write is None else _pico(write),
    )


def _pico(dollars_per_million: float) -> int:
    return round(dollars_per_million * PICO_PER_TOKEN)

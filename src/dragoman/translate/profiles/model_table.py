"""What each model accepts, by its name: the table of models.toml."""

import re
from fnmatch import fnmatchcase
from functools import cache, lru_cache

import msgspec

from dragoman.translate.hub.profile import Profile
from dragoman.translate.profiles.shipped_data import read_shipped

_DATE = re.compile(r"[-@](20\d{6}|20\d\d-\d\d-\d\d)(?=$|-)")
_TAIL = re.compile(r"(\[[^\]]*\]|-v\d+|:[\w.-]+|-latest|@default)$")
_VENDOR = re.compile(r"^(?:[a-z]{2,6}\.)?(?:anthropic|openai|azure)\.")


class _ProfileEntry(msgspec.Struct):
    match: list[str]
    profile: Profile


@lru_cache(maxsize=1024)  # names come from clients, who may invent any number of them
def find_profile(model: str) -> Profile:
    """Return the profile of a model; for an unknown one, the default that accepts everything."""
    name = normalise_name(model)
    for entry in _load_profiles():
        if any(fnmatchcase(name, pattern) for pattern in entry.match):
            return entry.profile
    return Profile()


def normalise_name(model: str) -> str:
    """Return one spelling for all variants: `us.anthropic.claude-sonnet-4.5-20250929-v1:0` is `claude-sonnet-4-5`."""
    name = _VENDOR.sub("", model.strip().lower().rpartition("/")[2])
    while (shorter := _TAIL.sub("", name)) != name:
        name = shorter
    return _DATE.sub("", name).replace(".", "-")


@cache
def _load_profiles() -> tuple[_ProfileEntry, ...]:
    models = msgspec.toml.decode(read_shipped("models.toml"), type=dict[str, list[dict[str, object]]])["models"]
    return tuple(_read_profile(model) for model in models)


def _read_profile(model: dict[str, object]) -> _ProfileEntry:
    match = msgspec.convert(model.pop("match"), list[str])
    if model.get("thinking_off") is False:  # TOML has no null: thinking of this model cannot be switched off
        model["thinking_off"] = None
    return _ProfileEntry(match, msgspec.convert(model, Profile))

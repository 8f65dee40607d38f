"""Profiles of models: what each accepts, from the table that ships beside this file."""

import re
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path

import msgspec

from dragoman.hub.profile import Profile

_DATE = re.compile(r"[-@](20\d{6}|20\d\d-\d\d-\d\d)(?=$|-)")
_TAIL = re.compile(r"(\[[^\]]*\]|-v\d+|:[\w.-]+|-latest|@default)$")
_VENDOR = re.compile(r"^(?:[a-z]{2,6}\.)?(?:anthropic|openai|azure)\.")


class _Entry(msgspec.Struct):
    match: list[str]
    profile: Profile


@lru_cache(maxsize=1024)  # names come from clients, who may invent any number of them
def find_profile(model: str) -> Profile:
    """Return the profile of a model; for an unknown one, the default that accepts everything."""
    name = normalise_name(model)
    for entry in _entries():
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
def _entries() -> tuple[_Entry, ...]:
    text = (Path(__file__).parent / "models.toml").read_text(encoding="utf-8")
    models = msgspec.toml.decode(text, type=dict[str, list[dict[str, object]]])["models"]
    return tuple(_entry(model) for model in models)


def _entry(model: dict[str, object]) -> _Entry:
    match = msgspec.convert(model.pop("match"), list[str])
    if model.get("thinking_off") is False:  # TOML has no null: thinking of this model cannot be switched off
        model["thinking_off"] = None
    return _Entry(match, msgspec.convert(model, Profile))

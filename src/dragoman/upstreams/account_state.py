"""The state of an upstream account: its limits, its plan, and what `dragoman doctor` finds."""

import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from dragoman.net.headers import Headers
from dragoman.upstreams.credentials.credential import parse_timestamp


class AllowanceWindow(Struct, frozen=True):
    """The used share of an allowance, and when it resets."""

    used_percent: float
    resets_at: float | None = None  # seconds since the epoch
    unlimited: bool = False


class Credits(Struct, frozen=True):
    has: bool
    unlimited: bool


class AccountLimits(Struct, frozen=True):
    windows: dict[str, AllowanceWindow] = {}  # by the provider's own names
    credits: Credits | None = None
    plan: str | None = None
    exhausted_until: float | None = None  # the upstream rejects requests until then


class Quota(Struct, frozen=True):
    provider: str
    plan: str
    what: str  # credits, requests, tokens
    used: float
    limit: float | None  # None: unlimited
    resets_on: str | None  # a date, with the time if it is soon


State = Literal["ok", "warning", "broken"]
OK: State = "ok"
WARNING: State = "warning"
BROKEN: State = "broken"


class Finding(Struct, frozen=True):
    """The result of one check."""

    what: str
    state: State
    found: str
    to_do: str = ""


# `x-ratelimit-remaining-tokens`, `anthropic-ratelimit-tokens-remaining`, `ratelimit-remaining`
REMAINING = re.compile(rb"(?:[a-z]+-)?ratelimit-(?:[a-z0-9-]+-)?remaining(?:-[a-z0-9-]+)?")
DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
UNITS = (86_400.0, 3600.0, 60.0, 1.0, 0.001)
YEAR_2001 = 1e9  # a larger number of seconds is a time, not a duration


def read_exhausted_until(headers: Headers, now: float) -> float | None:
    """Return when the last exhausted allowance resets; None if none is exhausted."""
    return max((moment for moment in _resets(headers, now) if moment > now), default=None)


def _resets(headers: Headers, now: float) -> Iterator[float]:
    for name, value in headers:
        if b"remaining" in name and REMAINING.fullmatch(name) and _is_zero(value):
            reset = headers.get(name.replace(b"remaining", b"reset"))
            moment = None if reset is None else parse_reset(reset.decode("latin-1").strip(), now)
            if moment is not None:
                yield moment


def _is_zero(value: bytes) -> bool:
    try:
        return float(value) <= 0
    except ValueError:
        return False


def parse_reset(text: str, now: float) -> float | None:
    """Parse a date, a time, a number of seconds, or a duration like `6m0s`."""
    date = parse_timestamp(text)
    if date is not None:
        return date
    try:
        seconds = float(text)
    except ValueError:
        found = DURATION.fullmatch(text) if text else None
        if found is None:
            return None
        parts = zip(found.groups(), UNITS, strict=True)
        return now + sum(float(number) * unit for number, unit in parts if number is not None)
    if not 0 <= seconds < 1e12:
        return None
    return seconds if seconds > YEAR_2001 else now + seconds

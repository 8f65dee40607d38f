"""Headers of an answer come in; until when they say that an allowance is used up goes out."""

import re
from collections.abc import Iterator

from dragoman.accounts.timestamps import parse_timestamp
from dragoman.net.headers import Headers

# `x-ratelimit-remaining-tokens`, `anthropic-ratelimit-tokens-remaining`, `ratelimit-remaining`
REMAINING = re.compile(rb"(?:[a-z]+-)?ratelimit-(?:[a-z0-9-]+-)?remaining(?:-[a-z0-9-]+)?")
DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
UNITS = (86_400.0, 3600.0, 60.0, 1.0, 0.001)
YEAR_2001 = 1e9  # a larger number of seconds is a moment, not a while


def spent_until(headers: Headers, now: float) -> float | None:
    """The latest moment at which something that is used up begins anew; None where there is something left of all."""
    return max((moment for moment in _resets(headers, now) if moment > now), default=None)


def _resets(headers: Headers, now: float) -> Iterator[float]:
    for name, value in headers:
        if b"remaining" in name and REMAINING.fullmatch(name) and _is_nothing(value):
            told = headers.get(name.replace(b"remaining", b"reset"))
            moment = None if told is None else moment_of(told.decode("latin-1").strip(), now)
            if moment is not None:
                yield moment


def _is_nothing(value: bytes) -> bool:
    try:
        return float(value) <= 0
    except ValueError:
        return False


def moment_of(text: str, now: float) -> float | None:
    """Vendors write a date, a moment, seconds, or a while like `6m0s`."""
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

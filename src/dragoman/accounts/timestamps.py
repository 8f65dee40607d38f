"""Timestamps in credential files, and a clock that follows the servers' Date headers."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime

NOISE_S = 30.0  # a Date header is in whole seconds and arrives late: a smaller difference is not a skew

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?\s*([Zz]|[+-]\d\d:?\d\d)?")


def parse_timestamp(text: str) -> float | None:
    """Parse RFC 3339 with any number of fractional digits; None if it is not a timestamp."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    offset = "+00:00" if zone is None or zone in "Zz" else zone
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6].ljust(6, '0')}{offset}")
    except ValueError:
        return None
    return moment.timestamp()


def format_timestamp(seconds: float) -> str:
    """Format as UTC with milliseconds and Z, as the tools do whose files we share."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class ServerClock:
    """The servers' time: ours, corrected by their Date headers."""

    __slots__ = ("_clock", "_skew")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._skew = 0.0

    def now(self) -> float:
        return self._clock() + self._skew

    def observe_date(self, date: bytes | None) -> None:
        if date is None:
            return
        from email.utils import parsedate_to_datetime  # 2 MB, only for vendors whose clock matters

        try:
            skew = parsedate_to_datetime(date.decode("latin-1")).timestamp() - self._clock()
        except ValueError:
            return
        self._skew = skew if abs(skew) > NOISE_S else 0.0

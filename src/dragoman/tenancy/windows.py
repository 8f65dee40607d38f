"""Windows of limits: calendar days, ISO weeks and months of a time zone, or all time; and the counters named by them.

A window needs no reset: its name is part of the counter's, so the next one begins at nothing.
"""

import re
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman.store.spending import FOREVER_MS, SpendingQuery

TOTAL = "total"
PAST_MS = 3_600_000
UNESCAPED = "@ /+"  # besides letters, digits and -._~: colons and commas separate
_NAME = re.compile(r"(\d{4})-(?:(\d\d)(?:-(\d\d))?|W(\d\d))", re.ASCII)


class WindowKind(StrEnum):
    """How long a window is."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    TOTAL = TOTAL


class Window(Struct, frozen=True):
    """A window by its name (`2026-11-18`, `2026-W47`, `2026-11`, `total`), and when it starts and ends."""

    name: str
    start_ms: int  # since the epoch; 0 of all time
    end_ms: int | None  # when the next one starts; None: never


class CounterName(Struct, frozen=True):
    """The parts of the name of a window's counter."""

    scope: str  # "all", "team:core", "provider:kiro,kiro-2"
    unit: str  # "usd", "tokens", "credits"
    window: str


def find_window(kind: WindowKind, now_s: float, zone: tzinfo) -> Window:
    """Return the window that has this time, in Unix seconds."""
    if kind is WindowKind.TOTAL:
        return parse_window(TOTAL, zone)
    day = datetime.fromtimestamp(now_s, zone).date()
    window = parse_window(_name_window(kind, day), zone)
    if window.end_ms is not None and now_s * 1000 >= window.end_ms:
        # Clocks were set back over midnight. They show the day before once more, but the new one has begun.
        window = parse_window(_name_window(kind, day + timedelta(days=1)), zone)
    return window


@lru_cache(maxsize=1024)
def parse_window(name: str, zone: tzinfo) -> Window:
    """Return the window of this name. Raises ValueError."""
    if name == TOTAL:
        return Window(name, 0, None)
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f'"{name}" is not the name of a window')
    year, month, day, week = (int(part or 0) for part in found.groups())
    try:
        if week:
            first = date.fromisocalendar(year, week, 1)
            end = first + timedelta(days=7)
        elif found[3]:
            first = date(year, month, day)
            end = first + timedelta(days=1)
        else:
            first = date(year, month, 1)
            end = date(year + month // 12, month % 12 + 1, 1)
    except OverflowError as error:
        raise ValueError(f'"{name}" is too late') from error
    return Window(name, _find_start_ms(first, zone), _find_start_ms(end, zone))


def name_scope(kind: str, *parts: str) -> str:
    """Return the name of a scope, such as `team:core`; colons and commas of the parts are percent-encoded."""
    return ":".join((kind, ",".join(quote(part, safe=UNESCAPED) for part in parts))) if parts else kind


def parse_scope(scope: str) -> tuple[str, tuple[str, ...]]:
    """Return kind and parts of the name of a scope."""
    kind, _, parts = scope.partition(":")
    return kind, tuple(map(unquote, parts.split(","))) if parts else ()


def name_counter(scope: str, unit: str, window: Window) -> str:
    """Return the name of the counter of a scope in a window."""
    return f"{scope}:{unit}:{window.name}"


def parse_counter(counter: str) -> CounterName:
    """Return the parts of the name of a window's counter. Raises ValueError."""
    scope, unit, window = counter.rsplit(":", 2)
    return CounterName(scope, unit, window)


def find_spending(counter: str, zone: tzinfo, now_ms: int, leases: Sequence[str] = ()) -> SpendingQuery:
    """Return what to add up for the counter of a window, without the rows of some leases. Raises ValueError."""
    name = parse_counter(counter)
    kind, names = parse_scope(name.scope)
    window = parse_window(name.window, zone)
    end_ms = FOREVER_MS if window.end_ms is None else window.end_ms
    return SpendingQuery(kind, names, name.scope, name.unit, window.start_ms, end_ms, now_ms, tuple(leases))


def is_past(counter: str, zone: tzinfo, now_ms: int) -> bool:
    """Return whether a counter is of a window that ended an hour ago: requests that began in it may still run."""
    try:
        end_ms = parse_window(counter.rpartition(":")[2], zone).end_ms
    except ValueError:  # of slots or a rate
        return False
    return end_ms is not None and end_ms + PAST_MS < now_ms


def _name_window(kind: WindowKind, day: date) -> str:
    match kind:
        case WindowKind.DAY:
            return day.isoformat()
        case WindowKind.WEEK:
            year, week, _ = day.isocalendar()
            return f"{year:04}-W{week:02}"
        case _:
            return f"{day.year:04}-{day.month:02}"


def _find_start_ms(day: date, zone: tzinfo) -> int:
    """Return when a day begins: the first time that clocks show midnight, or where they jump over it."""
    return round(datetime.combine(day, time(), zone).timestamp()) * 1000

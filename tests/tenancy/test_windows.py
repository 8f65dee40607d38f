"""Windows in time zones: which one has a time, where each begins, and that none overlaps another."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.tenancy.windows import (
    WindowKind,
    find_window,
    name_counter,
    name_scope,
    parse_counter,
    parse_scope,
    parse_window,
)
from tables import each_row

ZONES = sorted(available_timezones())
TIMES = st.floats(0, 4_000_000_000)
CALENDAR = [WindowKind.DAY, WindowKind.WEEK, WindowKind.MONTH]


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def utc(text: str) -> int:
    return round(at(text) * 1000)


@each_row(
    ("kind", "moment", "zone", "expected"),
    [
        (WindowKind.DAY, "2026-11-18T23:59:59", "UTC", "2026-11-18"),
        (WindowKind.DAY, "2026-11-18T23:59:59", "Asia/Tokyo", "2026-11-19"),
        (WindowKind.WEEK, "2026-12-31T12:00:00", "UTC", "2026-W53"),
        (WindowKind.WEEK, "2027-01-03T23:59:59", "UTC", "2026-W53"),
        (WindowKind.WEEK, "2027-01-04T00:00:00", "UTC", "2027-W01"),
        (WindowKind.MONTH, "2026-11-30T23:30:00", "Europe/Berlin", "2026-12"),
        (WindowKind.MONTH, "2026-12-01T04:30:00", "America/New_York", "2026-11"),
        (WindowKind.TOTAL, "2026-12-01T04:30:00", "America/New_York", "total"),
    ],
)
def test_a_time_is_in_the_window_of_its_time_zone(kind: WindowKind, moment: str, zone: str, expected: str) -> None:
    assert find_window(kind, at(moment), ZoneInfo(zone)).name == expected


@each_row(
    ("name", "zone", "start", "end"),
    [
        ("2026-03-29", "Europe/Berlin", "2026-03-28T23:00:00", "2026-03-29T22:00:00"),  # 23 hours
        ("2026-10-25", "Europe/Berlin", "2026-10-24T22:00:00", "2026-10-25T23:00:00"),  # 25 hours
        ("2026-03", "Europe/Berlin", "2026-02-28T23:00:00", "2026-03-31T22:00:00"),
        ("2026-12", "UTC", "2026-12-01T00:00:00", "2027-01-01T00:00:00"),
        ("2026-W53", "UTC", "2026-12-28T00:00:00", "2027-01-04T00:00:00"),
        ("2018-11-04", "America/Sao_Paulo", "2018-11-04T03:00:00", "2018-11-05T02:00:00"),  # midnight is skipped
        ("2010-11-07", "America/St_Johns", "2010-11-07T02:30:00", "2010-11-08T03:30:00"),  # set back over midnight
        ("2011-12-31", "Pacific/Apia", "2011-12-30T10:00:00", "2011-12-31T10:00:00"),  # a day was left out
    ],
)
def test_a_window_begins_when_clocks_first_show_its_midnight(name: str, zone: str, start: str, end: str) -> None:
    window = parse_window(name, ZoneInfo(zone))
    assert (window.start_ms, window.end_ms) == (utc(start), utc(end))


@given(st.sampled_from(CALENDAR), TIMES, st.sampled_from(ZONES))
def test_every_time_is_in_one_window_and_the_next_begins_at_its_end(kind: WindowKind, now: float, zone: str) -> None:
    info = ZoneInfo(zone)
    window = find_window(kind, now, info)
    assert window.end_ms is not None
    assert window.start_ms <= now * 1000 < window.end_ms
    assert find_window(kind, window.start_ms / 1000, info) == window
    following = find_window(kind, window.end_ms / 1000, info)
    assert following.start_ms == window.end_ms
    assert following.name > window.name
    assert parse_window(window.name, info) == window


def test_the_hour_that_clocks_show_again_belongs_to_the_day_that_has_begun() -> None:
    zone = ZoneInfo("America/St_Johns")  # at 00:01 set back to 23:01
    for minutes in range(-120, 120):
        moment = at("2010-11-07T02:30:00") + 60 * minutes
        expected = "2010-11-06" if minutes < 0 else "2010-11-07"
        assert find_window(WindowKind.DAY, moment, zone).name == expected


@pytest.mark.parametrize("name", ["", "2026", "2026-13", "2026-00-01", "2026-02-30", "2026-W54", "2026-1", "Total"])
def test_what_is_no_window_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_window(name, UTC)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_a_scope_and_its_counter_are_read_back(parts: list[str]) -> None:
    scope = name_scope("provider", *parts)
    assert parse_scope(scope) == ("provider", tuple(parts))
    found = parse_counter(name_counter(scope, "usd", parse_window("2026-11", UTC)))
    assert (found.scope, found.unit, found.window) == (scope, "usd", "2026-11")


def test_counters_read_as_they_are_documented() -> None:
    november = parse_window("2026-11", UTC)
    assert name_counter("all", "usd", november) == "all:usd:2026-11"
    assert name_counter(name_scope("user", "dev@example.com"), "usd", november) == "user:dev@example.com:usd:2026-11"
    assert name_scope("provider", "kiro", "kiro-2") == "provider:kiro,kiro-2"

"""Timestamps in credential files, and a clock that is corrected by servers."""

from email.utils import formatdate

import pytest

from dragoman.upstreams.credentials.credential import format_timestamp, parse_timestamp
from dragoman.upstreams.credentials.service_client import ServerClock


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02T03:04:05.123456789Z",
        "2026-01-02T03:04:05.123456Z",
        "2026-01-02T03:04:05.123456+00:00",
        "2026-01-02t04:04:05.1234567890123+01:00",
        "2026-01-01 22:04:05.123456-0500",
    ],
)
def test_any_number_of_fractional_digits_and_any_offset_is_read(text: str) -> None:
    assert parse_timestamp(text) == pytest.approx(1767323045.123456, abs=1e-6)


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01T00:00:00Z", "2026-01-02", "1767323045"])
def test_an_invalid_timestamp_is_none(text: str) -> None:
    assert parse_timestamp(text) is None


def test_a_timestamp_survives_formatting_and_parsing() -> None:
    assert format_timestamp(1767323045.123) == "2026-01-02T03:04:05.123Z"
    assert parse_timestamp(format_timestamp(1767323045.123)) == pytest.approx(1767323045.123, abs=1e-3)


def test_a_clock_that_is_hours_off_is_corrected_by_a_date_header() -> None:
    clock = ServerClock(lambda: 1_000_000.0)
    clock.observe_date(formatdate(1_007_200, usegmt=True).encode())
    assert clock.now() == pytest.approx(1_007_200, abs=1)


def test_a_small_difference_changes_nothing() -> None:
    clock = ServerClock(lambda: 1_000_000.4)
    clock.observe_date(formatdate(999_998, usegmt=True).encode())
    assert clock.now() == 1_000_000.4


@pytest.mark.parametrize("date", [None, b"", b"not a date", b"\xff\xfe"])
def test_an_invalid_date_is_ignored(date: bytes | None) -> None:
    clock = ServerClock(lambda: 5.0)
    clock.observe_date(date)
    assert clock.now() == 5.0

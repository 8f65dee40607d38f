"""Counts that cannot be true are clamped, and are not called reported any more."""

import math

import pytest
from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.usage import MAX_COUNT, MAX_CREDITS, Usage, UsageSource, clamp_usage


@pytest.mark.parametrize(
    "field", ["input", "output", "cache_read", "cache_write", "reasoning", "web_searches", "context"]
)
def test_every_count_is_clamped_and_marked_as_derived(field: str) -> None:
    for reported, expected in ((-1, 0), (10**400, MAX_COUNT), (MAX_COUNT + 1, MAX_COUNT)):
        ledger = Ledger()
        usage = clamp_usage(replace(Usage(), **{field: reported}), ledger)
        assert getattr(usage, field) == expected
        assert usage.source is UsageSource.DERIVED
        assert [loss.path for loss in ledger] == ["/usage"]


@pytest.mark.parametrize(
    ("reported", "expected"), [(-0.5, 0.0), (math.inf, MAX_CREDITS), (1e308, MAX_CREDITS), (math.nan, None), (0.5, 0.5)]
)
def test_credits_are_clamped(reported: float, expected: float | None) -> None:
    assert clamp_usage(Usage(credits=reported), Ledger()).credits == expected


def test_what_is_kept_for_an_hour_is_part_of_what_is_kept() -> None:
    assert clamp_usage(Usage(cache_write=3, cache_write_1h=5), Ledger()).cache_write_1h == 3


def test_sane_counts_pass_as_they_are() -> None:
    ledger = Ledger()
    usage = Usage(10, 5, 2, 3, 1, 4, 1, 1, 20, 0.5)
    assert clamp_usage(usage, ledger) is usage
    assert not len(ledger)

"""The account's limits in the ChatGPT backend's headers."""

from dragoman.net.headers import Headers
from dragoman.upstreams.account_state import AllowanceWindow, Credits
from dragoman.upstreams.codex.account import LimitTracker, read_limits
from narrowing import present

NOW = 1_794_700_000.0


def headers_of(**fields: str) -> Headers:
    return Headers([(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()])


PLUS = headers_of(
    x_codex_primary_used_percent="42",
    x_codex_primary_window_minutes="300",
    x_codex_primary_reset_at="1794703600",
    x_codex_secondary_used_percent="0",
    x_codex_secondary_window_minutes="0",
    x_codex_secondary_reset_at="",
    x_codex_credits_has_credits="False",
    x_codex_credits_unlimited="False",
    x_codex_credits_balance="",
)


def test_a_window_without_values_is_ignored() -> None:
    limits = read_limits(PLUS, NOW)
    assert limits is not None
    assert limits.windows == {"primary": AllowanceWindow(42.0, 1794703600.0)}
    assert limits.credits == Credits(has=False, unlimited=False)


def test_other_limits_have_names_of_their_own() -> None:
    limits = read_limits(
        headers_of(x_codex_spark_primary_used_percent="7.5", x_codex_spark_primary_window_minutes="60"), NOW
    )
    assert present(limits).windows == {"codex-spark/primary": AllowanceWindow(7.5)}


def test_a_relative_reset_becomes_a_time() -> None:
    fields = headers_of(x_codex_primary_used_percent="99", x_codex_primary_reset_after_seconds="60")
    assert present(read_limits(fields, NOW)).windows["primary"].resets_at == NOW + 60


def test_headers_without_limits_change_nothing() -> None:
    tracker = LimitTracker()
    tracker.update(PLUS, NOW)
    tracker.update(headers_of(content_type="text/event-stream"), NOW)
    assert present(tracker.limits).windows["primary"].used_percent == 42.0


def test_an_account_stays_exhausted_until_its_reset() -> None:
    tracker = LimitTracker()
    tracker.set_exhausted(NOW + 600)
    tracker.update(PLUS, NOW + 1)
    assert tracker.limits is not None
    assert tracker.limits.exhausted_until == NOW + 600
    tracker.update(PLUS, NOW + 601)
    assert tracker.limits.exhausted_until is None


def test_invalid_numbers_are_ignored() -> None:
    limits = read_limits(headers_of(x_codex_primary_used_percent="nan", x_codex_plan_type="plus"), NOW)
    assert limits is not None
    assert (limits.windows, limits.plan) == ({}, "plus")

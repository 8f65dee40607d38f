"""Exhausted allowances as reported by response headers."""

import pytest

from dragoman.net.headers import Headers
from dragoman.upstreams.account_state import parse_reset, read_exhausted_until
from dragoman.upstreams.codex.account import read_codex_exhausted_until

NOW = 1_800_000_000.0


def headers_of(**fields: str) -> Headers:
    return Headers([(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()])


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1s", NOW + 1),
        ("6m0s", NOW + 360),
        ("120ms", NOW + 0.12),
        ("1h2m3.5s", NOW + 3723.5),
        ("2d", NOW + 172_800),
        ("30", NOW + 30),
        ("1800000060", NOW + 60),
        ("2027-01-15T08:01:00Z", NOW + 60),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("nan", None),
        ("1e30", None),
    ],
)
def test_a_reset_is_parsed_in_every_vendors_format(text: str, moment: float | None) -> None:
    found = parse_reset(text, NOW)
    assert found == (None if moment is None else pytest.approx(moment))


@pytest.mark.parametrize(
    ("fields", "until"),
    [
        ({"x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "10s"}, NOW + 10),
        ({"x_ratelimit_remaining_requests": "1", "x_ratelimit_reset_requests": "10s"}, None),
        ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": "1800000020"}, NOW + 20),
        ({"ratelimit_remaining": "0", "ratelimit_reset": "20"}, NOW + 20),
        ({"x_ratelimit_remaining_tokens": "0"}, None),
        (
            {
                "x_ratelimit_remaining_requests": "0",
                "x_ratelimit_reset_requests": "10s",
                "x_ratelimit_remaining_tokens": "0",
                "x_ratelimit_reset_tokens": "1m",
            },
            NOW + 60,
        ),
        (
            {
                "anthropic_ratelimit_input_tokens_remaining": "0",
                "anthropic_ratelimit_input_tokens_reset": "2027-01-15T08:02:00Z",
                "anthropic_ratelimit_requests_remaining": "5",
                "anthropic_ratelimit_requests_reset": "2027-01-15T09:00:00Z",
            },
            NOW + 120,
        ),
        (
            {
                "anthropic_ratelimit_requests_remaining": "0",
                "anthropic_ratelimit_requests_reset": "2026-01-01T00:00:00Z",
            },
            None,
        ),
        ({"x_quota_remaining_words": "0", "x_quota_reset_words": "10s"}, None),
    ],
)
def test_only_exhausted_allowances_with_a_later_reset_count(fields: dict[str, str], until: float | None) -> None:
    assert read_exhausted_until(headers_of(**fields), NOW) == until


def test_of_several_exhausted_windows_the_last_reset_counts() -> None:
    fields = {
        "x_codex_primary_used_percent": "100",
        "x_codex_primary_reset_at": str(NOW + 60),
        "x_codex_secondary_used_percent": "100.0",
        "x_codex_secondary_reset_after_seconds": "600",
        "x_spark_primary_used_percent": "100",
        "x_spark_primary_reset_at": str(NOW + 9000),
    }
    assert read_codex_exhausted_until(headers_of(**fields), NOW) == NOW + 600
    fields["x_codex_secondary_used_percent"] = "99"
    assert read_codex_exhausted_until(headers_of(**fields), NOW) == NOW + 60
    fields["x_codex_credits_has_credits"] = "1"
    assert read_codex_exhausted_until(headers_of(**fields), NOW) is None
    assert read_codex_exhausted_until(headers_of(content_type="text/event-stream"), NOW) is None

"""The filter language: each term is a condition, and what cannot be understood is named."""

from datetime import UTC, datetime

import pytest

from dragoman.operate import InvalidArgument
from dragoman.operate.usage.request_filter import parse_filter
from dragoman.store.usage_rows import Condition, RequestSearch

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
KEYS = {"key_1": "ci", "key_2": "ci-nightly", "key_3": "laptop", "environment": "environment"}


def parse(text: str) -> RequestSearch:
    return parse_filter(text, NOW, KEYS)


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("", ()),
        ("route:kiro/*", (Condition("route", "matches", "kiro/*"),)),
        ("outcome:!ok", (Condition("outcome", "=", "ok", negated=True),)),
        ("outcome:ok  provider:kiro", (Condition("outcome", "=", "ok"), Condition("provider", "=", "kiro"))),
        ("key:ci", (Condition("key", "=", "key_1"),)),
        ("key:key_3", (Condition("key", "=", "key_3"),)),
        ("key:ci*", (Condition("key", "in", ("key_1", "key_2")),)),
        ("key:!unknown", (Condition("key", "in", (), negated=True),)),
        ("ttft>5s", (Condition("ttft_ms", ">", 5000),)),
        ("ttft<=1.5", (Condition("ttft_ms", "<=", 1500),)),
        ("duration>=2m", (Condition("duration_ms", ">=", 120_000),)),
        ("cost>0.1", (Condition("cost_nano_usd", ">", 100_000_000),)),
        ("losses:0", (Condition("losses", "=", 0),)),
        ("credits>0.5", (Condition("credits", ">", 0.5),)),
        ("stream:yes", (Condition("stream", "=", True),)),
        ("req_1234", (Condition("request_id", "=", "req_1234"),)),
        ('client:"claude code"', (Condition("client", "=", "claude code"),)),
        ("model:<b>", (Condition("model", "=", "<b>"),)),
    ],
)
def test_a_term_becomes_a_condition(text: str, conditions: tuple[Condition, ...]) -> None:
    assert parse(text).conditions == conditions


@pytest.mark.parametrize(
    ("text", "since_ms", "until_ms"),
    [
        ("after:2h", NOW_MS - 7_200_000, 10**17),
        ("after:2h after:1h", NOW_MS - 3_600_000, 10**17),
        ("after:2026-11-15 before:30m", NOW_MS - 36 * 3_600_000, NOW_MS - 1_800_000),
        ("before:2026-11-16T13:00+01:00", 0, NOW_MS),
    ],
)
def test_times_are_durations_that_have_passed_or_moments(text: str, since_ms: int, until_ms: int) -> None:
    search = parse(text)
    assert (search.since_ms, search.until_ms) == (since_ms, until_ms)


@pytest.mark.parametrize(
    "text",
    [
        *("colour:red", "tag:job=7", "ttft>soon", "cost>1e999", "cost>-1", "route>5", "after:yesterday", "after>2h"),
        *("before:0001-01-01", "stream:maybe", "key:", 'key:""', '"', "::", "<5", "x" * 3000, "a " * 31),
    ],
)
def test_what_cannot_be_understood_is_named(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse(text)
    assert text.split(maxsplit=1)[0][:20] in str(refused.value) or len(text) > 40

"""One log line for each session that loses its prompt cache."""

import logging

import pytest

from dragoman.operate.usage import cache_watch
from dragoman.operate.usage.cache_watch import MAX_SESSIONS, REQUESTS, CacheWatch
from dragoman.proxy.outcome import CacheUse, Origin, Outcome
from dragoman.translate.hub.usage import Usage


def outcome(read: int, possible: int | None = 100, session: str = "s", number: int = 1) -> Outcome:
    return Outcome(
        request_id=f"req_{number}",
        started_at=1.0,
        client_protocol="messages",
        provider="up",
        model="m",
        usage=Usage(input=1000, cache_read=read),
        origin=Origin(session=session),
        cache_use=CacheUse(possible),
    )


def lines_of(outcomes: list[Outcome], caplog: pytest.LogCaptureFixture) -> list[str]:
    watch = CacheWatch()
    caplog.clear()
    with caplog.at_level(logging.WARNING, cache_watch.__name__):
        for one in outcomes:
            watch.observe(one)
    return [record.getMessage() for record in caplog.records]


def test_a_session_is_named_once_with_the_command_that_explains_it(caplog: pytest.LogCaptureFixture) -> None:
    [line] = lines_of([outcome(79, number=number) for number in range(3 * REQUESTS)], caplog)
    assert line == (
        "Session s read 79 % of what its prompt cache at up/m could have had, over its last 10 requests. "
        "Run: dragoman cache why req_9"
    )


def test_eighty_percent_fewer_requests_and_unknown_ones_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    assert lines_of([outcome(80)] * 30, caplog) == []
    assert lines_of([outcome(0)] * (REQUESTS - 1), caplog) == []
    assert lines_of([outcome(0, None)] * 30, caplog) == []
    assert lines_of([outcome(0, session="")] * 30, caplog) == []
    assert lines_of([outcome(0, 0)] * 30, caplog) == []


def test_only_the_last_requests_count(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = [outcome(100)] * 50, [outcome(0)] * 2
    assert lines_of([*good, *bad], caplog) == []
    assert len(lines_of([*good, *bad, outcome(0)], caplog)) == 1


def test_two_sessions_are_two_lines_and_names_of_clients_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    mixed = [outcome(0, session=name) for _ in range(12) for name in ("a", "b\nc")]
    lines = lines_of(mixed, caplog)
    assert len(lines) == 2
    assert not any("\n" in line for line in lines)


def test_sessions_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    watch = CacheWatch()
    for number in range(MAX_SESSIONS + 5):
        watch.observe(outcome(0, session=f"s{number}"))
    assert len(watch._sessions) == MAX_SESSIONS

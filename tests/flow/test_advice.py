"""What a refusal's headers advise about trying again, by the upstream's clock and by ours."""

import pytest

from dragoman.flow.advice import advised, clock_skew, resets_by_our_clock
from dragoman.hub.failure import Failure, Kind
from dragoman.net.headers import Header, Headers

NOW = 1_794_744_000.0  # 2026-11-15 12:00:00 UTC by our clock
LIMITED = Failure(Kind.RATE_LIMITED, "slow down")


def nothing_spent(headers: Headers, now: float) -> float | None:
    return None


def advise(failure: Failure, *fields: Header) -> Failure:
    return advised(failure, Headers(list(fields)), NOW, nothing_spent)


@pytest.mark.parametrize(
    ("value", "should"),
    [(b"true", True), (b"TRUE", True), (b"false", False), (b"perhaps", None), (None, None)],
)
def test_whether_the_upstream_advises_a_retry(value: bytes | None, should: bool | None) -> None:
    fields: list[Header] = [] if value is None else [(b"x-should-retry", value)]
    assert advise(LIMITED, *fields).should_retry is should


def test_seconds_that_the_protocol_read_win_over_a_date() -> None:
    failure = Failure(Kind.OVERLOADED, "busy", retry_after=3.0)
    assert advise(failure, (b"retry-after", b"Sun, 15 Nov 2026 12:10:00 GMT")).retry_after == 3.0


@pytest.mark.parametrize(
    ("retry_after", "wait"),
    [
        (b"Sun, 15 Nov 2026 12:00:30 GMT", 30.0),
        (b"Sun, 15 Nov 2026 11:00:00 GMT", 0.0),  # it has passed
        (b"soon", None),
        (b"\xff\xfe", None),
    ],
)
def test_a_date_becomes_seconds(retry_after: bytes, wait: float | None) -> None:
    assert advise(LIMITED, (b"retry-after", retry_after)).retry_after == wait


def test_a_date_is_judged_by_the_clock_of_whoever_wrote_it() -> None:
    theirs = (b"date", b"Sun, 15 Nov 2026 11:00:00 GMT")  # an hour behind ours
    assert clock_skew(Headers([theirs]), NOW) == 3600
    assert clock_skew(Headers([]), NOW) == 0
    assert advise(LIMITED, theirs, (b"retry-after", b"Sun, 15 Nov 2026 11:00:30 GMT")).retry_after == 30.0


def test_the_moment_in_an_error_body_is_turned_into_ours() -> None:
    theirs = Headers([(b"date", b"Sun, 15 Nov 2026 11:00:00 GMT")])
    failure = Failure(Kind.QUOTA, "used up", resets_at=NOW - 3000)
    assert resets_by_our_clock(failure, theirs, NOW).resets_at == NOW + 600
    assert resets_by_our_clock(LIMITED, theirs, NOW) is LIMITED


@pytest.mark.parametrize("kind", list(Kind))
def test_spent_allowances_are_read_where_the_failure_is_about_them(kind: Kind) -> None:
    asked_at: list[float] = []

    def spent(headers: Headers, now: float) -> float | None:
        asked_at.append(now)
        return now + 50

    headers = Headers([(b"date", b"Sun, 15 Nov 2026 11:00:00 GMT")])
    failure = advised(Failure(kind, "no"), headers, NOW, spent)
    if kind in (Kind.RATE_LIMITED, Kind.QUOTA):
        assert asked_at == [NOW - 3600]
        assert failure.resets_at == NOW + 50
    else:
        assert (asked_at, failure.resets_at) == ([], None)


def test_allowances_are_not_read_where_the_upstream_says_how_long() -> None:
    def never(headers: Headers, now: float) -> float | None:
        raise AssertionError

    assert advised(Failure(Kind.QUOTA, "no", retry_after=2.0), Headers([]), NOW, never).resets_at is None
    assert advised(Failure(Kind.QUOTA, "no", resets_at=NOW + 9), Headers([]), NOW, never).resets_at == NOW + 9

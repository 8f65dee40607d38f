"""A refusal and its headers come in; what they advise about trying again goes out with it."""

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from msgspec.structs import replace

from dragoman.hub.failure import Failure, Kind
from dragoman.net.headers import Headers

LIMITED = (Kind.RATE_LIMITED, Kind.QUOTA)
Spent = Callable[[Headers, float], float | None]
SAYINGS = {b"true": True, b"false": False}


def advised(failure: Failure, headers: Headers, now: float, spent_until: Spent) -> Failure:
    """Protocols read seconds; a date needs a clock. `spent_until` reads what the vendor says of its allowances.

    A date is judged by the upstream's own clock, which its `Date` header tells, and `resets_at` is turned into ours.
    """
    should = SAYINGS.get((headers.get(b"x-should-retry") or b"").lower())
    wait = failure.retry_after
    if wait is None:
        moment = _moment(headers.get(b"retry-after"))
        wait = None if moment is None else max(0.0, float(round(moment - now + clock_skew(headers, now))))
    resets_at = failure.resets_at
    if resets_at is None and wait is None and failure.kind in LIMITED:
        skew = clock_skew(headers, now)
        resets_at = spent_until(headers, now - skew)
        resets_at = None if resets_at is None else resets_at + skew
    return replace(failure, retry_after=wait, resets_at=resets_at, should_retry=should)


def clock_skew(headers: Headers, now: float) -> float:
    """Seconds by which our clock is ahead of the upstream's, whose answer has just come; 0 where it has no date."""
    theirs = _moment(headers.get(b"date"))
    return 0.0 if theirs is None else now - theirs


def resets_by_our_clock(failure: Failure, headers: Headers, now: float) -> Failure:
    """The moment that an error body names is one of the upstream's clock."""
    if failure.resets_at is None:
        return failure
    return replace(failure, resets_at=failure.resets_at + clock_skew(headers, now))


def _moment(date: bytes | None) -> float | None:
    if date is None:
        return None
    try:
        then = parsedate_to_datetime(date.decode("ascii"))
    except ValueError:
        return None
    aware: datetime = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return aware.timestamp()

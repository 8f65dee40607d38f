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
    """Protocols read seconds; a date needs a clock. `spent_until` reads what the vendor says of its allowances."""
    should = SAYINGS.get((headers.get(b"x-should-retry") or b"").lower())
    wait = failure.retry_after
    if wait is None:
        wait = _until(headers.get(b"retry-after"), now)
    resets_at = failure.resets_at
    if resets_at is None and wait is None and failure.kind in LIMITED:
        resets_at = spent_until(headers, now)
    return replace(failure, retry_after=wait, resets_at=resets_at, should_retry=should)


def _until(date: bytes | None, now: float) -> float | None:
    if date is None:
        return None
    try:
        then = parsedate_to_datetime(date.decode("ascii"))
    except ValueError:
        return None
    aware: datetime = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return max(0.0, float(round(aware.timestamp() - now)))

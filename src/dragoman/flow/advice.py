"""A refusal and its headers come in; what they advise about trying again goes out with it."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from msgspec.structs import replace

from dragoman.hub.failure import Failure
from dragoman.net.headers import Headers

SAYINGS = {b"true": True, b"false": False}


def advised(failure: Failure, headers: Headers, now: float) -> Failure:
    """Protocols read seconds; a date needs a clock."""
    should = SAYINGS.get((headers.get(b"x-should-retry") or b"").lower())
    wait = failure.retry_after
    if wait is None:
        wait = _until(headers.get(b"retry-after"), now)
    return replace(failure, retry_after=wait, should_retry=should)


def _until(date: bytes | None, now: float) -> float | None:
    if date is None:
        return None
    try:
        then = parsedate_to_datetime(date.decode("ascii"))
    except ValueError:
        return None
    aware: datetime = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return max(0.0, float(round(aware.timestamp() - now)))

"""Attribute an upstream's refusal: name the provider and the next step."""

from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

from msgspec.structs import replace

from dragoman.flow.prepare import Prepared
from dragoman.flow.redaction import redact_failure
from dragoman.hub.failure import Failure, Kind
from dragoman.net.headers import Headers
from dragoman.providers.provider import is_bad_token


def attribute_failure(prepared: Prepared, failure: Failure) -> Failure:
    """Name the provider in a failure; a rejected credential is the gateway's, not the client's."""
    failure = redact_failure(prepared.provider.replies.interpret_failure(failure), prepared.secrets)
    name = prepared.provider.name
    if failure.kind is Kind.CREDENTIAL or (failure.kind is Kind.FORBIDDEN and is_bad_token(failure)):
        status = f" (HTTP {failure.status})" if failure.status is not None else ""
        command = prepared.provider.auth.login_command
        remedy = f"Run: {command}" if command else f"Set providers.{name}.api_key, then run: dragoman doctor"
        which = f" {prepared.provider.account.label}" if prepared.provider.account.label else ""
        message = f"Provider {name!r} rejected the gateway's credential{which}{status}. {remedy}"
        return Failure(Kind.CREDENTIAL, message, status=failure.status, code=failure.code)
    if failure.kind is Kind.FORBIDDEN:
        return replace(failure, message=f"Provider {name!r}: {failure.message}", detail=None, retry_after=None)
    return failure


def redirect_failure(name: str, status: int, headers: Headers) -> Failure:
    """Return the failure of a redirect. It is not followed, because that would send the credential elsewhere."""
    try:
        host = urlsplit((headers.get(b"location") or b"").decode("latin-1")).hostname
    except ValueError:
        host = None
    where = f"to {host}" if host else "to another path of its host"
    message = (
        f"Provider {name!r} answered HTTP {status}, a redirect {where}, which is not followed. "
        f"Set providers.{name}.endpoint to the final address."
    )
    return Failure(Kind.UPSTREAM, message, status=status, should_retry=False)


LIMIT_KINDS = (Kind.RATE_LIMITED, Kind.QUOTA)
Spent = Callable[[Headers, float], float | None]
BOOLEANS = {b"true": True, b"false": False}


def add_retry_advice(failure: Failure, headers: Headers, now: float, spent_until: Spent) -> Failure:
    """Add the wait that response headers name. `spent_until` reads the vendor's headers about allowances.

    A date is compared with the upstream's own `Date` header, and `resets_at` is converted to the local clock.
    """
    should = BOOLEANS.get((headers.get(b"x-should-retry") or b"").lower())
    wait = failure.retry_after
    if wait is None:
        moment = _moment(headers.get(b"retry-after"))
        wait = None if moment is None else max(0.0, float(round(moment - now + clock_skew(headers, now))))
    resets_at = failure.resets_at
    if resets_at is None and wait is None and failure.kind in LIMIT_KINDS:
        skew = clock_skew(headers, now)
        resets_at = spent_until(headers, now - skew)
        resets_at = None if resets_at is None else resets_at + skew
    return replace(failure, retry_after=wait, resets_at=resets_at, should_retry=should)


def clock_skew(headers: Headers, now: float) -> float:
    """Return the seconds by which the local clock is ahead of the upstream's; 0 if its response has no date."""
    theirs = _moment(headers.get(b"date"))
    return 0.0 if theirs is None else now - theirs


def resets_by_our_clock(failure: Failure, headers: Headers, now: float) -> Failure:
    """Convert a time in an error body from the upstream's clock to the local one."""
    if failure.resets_at is None:
        return failure
    return replace(failure, resets_at=failure.resets_at + clock_skew(headers, now))


def _moment(date: bytes | None) -> float | None:
    if date is None:
        return None
    from email.utils import parsedate_to_datetime  # 2 MB, only for errors with a date

    try:
        then = parsedate_to_datetime(date.decode("ascii"))
    except ValueError:
        return None
    aware: datetime = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return aware.timestamp()

"""Turn failures of upstreams into responses to the client.

An upstream's refusal is attributed: it names the provider and the next step. Before the first byte, a failure is sent
as an HTTP error in the client's protocol.
"""

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from msgspec.structs import replace

from dragoman.net.headers import JSON, Header, Headers
from dragoman.net.sink import ReplySink, SinkPhase
from dragoman.proxy.prepared import Prepared
from dragoman.proxy.redaction import redact_failure
from dragoman.proxy.response_headers import headers_to_forward, id_headers
from dragoman.proxy.step import ErrorReply
from dragoman.translate.hub.failure import UNKNOWN_USE, Failure, Kind, RequestError
from dragoman.translate.hub.ports import Client
from dragoman.upstreams.provider import is_bad_token

# A retry never helps: a wrong client key, a rejected credential of the gateway, a limit of ours that is spent.
NEVER_RETRY = (Kind.AUTH, Kind.CREDENTIAL, Kind.SPENT)
# A retry does not help unless the upstream says so: a spent allowance, a model that is not allowed.
SELDOM_RETRY = (Kind.QUOTA, Kind.FORBIDDEN)
LIMIT_KINDS = (Kind.RATE_LIMITED, Kind.QUOTA)
UNREACHABLE: Header = (b"anthropic-ratelimit-unified-overage-disabled-reason", b"fetch_error")
BOOLEANS = {b"true": True, b"false": False}

Spent = Callable[[Headers, float], float | None]


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


def add_retry_advice(failure: Failure, headers: Headers, now: float, spent_until: Spent) -> Failure:
    """Add the wait that response headers name. `spent_until` reads the vendor's headers about allowances.

    A date is compared with the upstream's own `Date` header, and `resets_at` is converted to the local clock.
    """
    should = BOOLEANS.get((headers.get(b"x-should-retry") or b"").lower())
    wait = failure.retry_after
    if wait is None:
        moment = _parse_date(headers.get(b"retry-after"))
        wait = None if moment is None else max(0.0, float(round(moment - now + clock_skew(headers, now))))
    resets_at = failure.resets_at
    if resets_at is None and wait is None and failure.kind in LIMIT_KINDS:
        skew = clock_skew(headers, now)
        resets_at = spent_until(headers, now - skew)
        resets_at = None if resets_at is None else resets_at + skew
    return replace(failure, retry_after=wait, resets_at=resets_at, should_retry=should)


def clock_skew(headers: Headers, now: float) -> float:
    """Return the seconds by which the local clock is ahead of the upstream's; 0 if its response has no date."""
    theirs = _parse_date(headers.get(b"date"))
    return 0.0 if theirs is None else now - theirs


def adjust_reset_time(failure: Failure, headers: Headers, now: float) -> Failure:
    """Convert a time in an error body from the upstream's clock to the local one."""
    if failure.resets_at is None:
        return failure
    return replace(failure, resets_at=failure.resets_at + clock_skew(headers, now))


def _parse_date(date: bytes | None) -> float | None:
    if date is None:
        return None
    from email.utils import parsedate_to_datetime  # 2 MB, only for errors with a date

    try:
        then = parsedate_to_datetime(date.decode("ascii"))
    except (ValueError, OverflowError):
        return None
    aware: datetime = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return aware.timestamp()


class AllTargetsFailed(RequestError):
    """No upstream answered; `error_reply` is the last one's own error where the client can read it."""

    def __init__(self, failure: Failure, error_reply: ErrorReply | None, *, observed: bool = False) -> None:
        super().__init__(failure, observed=observed)
        self.error_reply = error_reply

    def as_observed(self) -> "AllTargetsFailed":
        return AllTargetsFailed(self.failure, self.error_reply, observed=True)


def respond_with_failure(
    sink: ReplySink, client: Client, refused: RequestError, request_id: str, headers: Sequence[Header] = ()
) -> None:
    """Send the upstream's own error body if client and upstream use one protocol, else render the failure.

    `headers` are sent with a failure that is rendered.
    """
    if sink.phase >= SinkPhase.SENT:
        sink.abort()  # the head was sent already: the stream has ended with its error event
        return
    failure = refused.failure
    error = refused.error_reply if isinstance(refused, AllTargetsFailed) else None
    if error is not None:
        fields = _without(headers_to_forward(error.headers), failure)
        head = [*fields, *id_headers(client, request_id, fields), *retry_headers(failure)]
        sink.respond(error.status, head, error.body)
        return
    rendered = client.render_error(failure, request_id)
    head = [JSON, *id_headers(client, request_id, []), *headers, *retry_headers(failure)]
    sink.respond(rendered.status, head, rendered.body)


def _without(fields: list[Header], failure: Failure) -> list[Header]:
    ours = {name for name, _ in retry_headers(failure)}
    if b"retry-after" in ours:
        ours.add(b"retry-after-ms")
    return [field for field in fields if field[0] not in ours]


def retry_headers(failure: Failure) -> list[Header]:
    """Return the headers that say whether and when the client should try again."""
    head = _format_wait(failure) if failure.kind is not Kind.LIMITED else _format_wait_of_limit(failure)
    again = should_retry(failure)
    if again is not None:
        head.append((b"x-should-retry", b"true" if again else b"false"))
    return head


def _format_wait(failure: Failure) -> list[Header]:
    """Return the time until a retry may help, from the upstream's seconds or date."""
    wait = failure.retry_after
    if wait is None:
        if failure.resets_at is None:
            return []
        wait = max(0.0, failure.resets_at - time.time())
    head: list[Header] = [(b"retry-after", str(math.ceil(wait)).encode())]
    if wait % 1 and failure.retry_after is not None:
        head.append((b"retry-after-ms", str(round(wait * 1000)).encode()))
    return head


def _format_wait_of_limit(failure: Failure) -> list[Header]:
    """Return the wait of a limit of ours to the millisecond, and in whole seconds for clients that read only those."""
    wait_ms = max(1, math.ceil((failure.retry_after or 0.0) * 1000))
    head: list[Header] = [
        (b"retry-after-ms", str(wait_ms).encode()),
        (b"retry-after", str(math.ceil(wait_ms / 1000)).encode()),
    ]
    return [*head, UNREACHABLE] if failure.code == UNKNOWN_USE else head


def should_retry(failure: Failure) -> bool | None:
    """Return the value of `x-should-retry`; None: not sent, so that the client retries by its own rules."""
    if failure.kind in NEVER_RETRY:
        return False
    advice = failure.should_retry
    return False if advice is None and failure.kind in SELDOM_RETRY else advice

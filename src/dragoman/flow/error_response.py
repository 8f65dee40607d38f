"""Send a failure before the first byte as an HTTP error in the client's protocol."""

import math
import time

from dragoman.flow.response_headers import headers_to_forward, id_headers
from dragoman.flow.step import ErrorReply
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.ports import Client
from dragoman.net.exchange import Exchange
from dragoman.net.headers import JSON, Header

# A retry never helps: a wrong client key, a rejected credential of the gateway.
NEVER_RETRY = (Kind.AUTH, Kind.CREDENTIAL)
# A retry does not help unless the upstream says so: a spent allowance, a model that is not allowed.
SELDOM_RETRY = (Kind.QUOTA, Kind.FORBIDDEN)


class AllTargetsFailed(RequestError):
    """No upstream answered; `error_reply` is the last one's own error where the client can read it."""

    def __init__(self, failure: Failure, error_reply: ErrorReply | None, *, observed: bool = False) -> None:
        super().__init__(failure, observed=observed)
        self.error_reply = error_reply

    def as_observed(self) -> "AllTargetsFailed":
        return AllTargetsFailed(self.failure, self.error_reply, observed=True)


def respond_with_failure(exchange: Exchange, client: Client, refused: RequestError, request_id: str) -> None:
    """Send the upstream's own error body if client and upstream use one protocol, else render the failure."""
    if exchange.started:
        exchange.abort()  # the head was sent already: the stream has ended with its error event
        return
    failure = refused.failure
    error = refused.error_reply if isinstance(refused, AllTargetsFailed) else None
    if error is not None:
        fields = _without(headers_to_forward(error.headers), failure)
        head = [*fields, *id_headers(client, request_id, fields), *retry_headers(failure)]
        exchange.respond(error.status, head, error.body)
        return
    rendered = client.render_error(failure, request_id)
    exchange.respond(
        rendered.status, [JSON, *id_headers(client, request_id, []), *retry_headers(failure)], rendered.body
    )


def _without(fields: list[Header], failure: Failure) -> list[Header]:
    ours = {name for name, _ in retry_headers(failure)}
    if b"retry-after" in ours:
        ours.add(b"retry-after-ms")
    return [field for field in fields if field[0] not in ours]


def retry_headers(failure: Failure) -> list[Header]:
    """Return the headers that say whether and when the client should try again."""
    head: list[Header] = []
    wait = _wait_s(failure)
    if wait is not None:
        head.append((b"retry-after", str(math.ceil(wait)).encode()))
        if wait % 1 and failure.retry_after is not None:
            head.append((b"retry-after-ms", str(round(wait * 1000)).encode()))
    again = should_retry(failure)
    if again is not None:
        head.append((b"x-should-retry", b"true" if again else b"false"))
    return head


def _wait_s(failure: Failure) -> float | None:
    """Return the seconds until a retry may help, from the upstream's seconds or date."""
    if failure.retry_after is not None or failure.resets_at is None:
        return failure.retry_after
    return max(0.0, failure.resets_at - time.time())


def should_retry(failure: Failure) -> bool | None:
    """Return the value of `x-should-retry`; None: not sent, so that the client retries by its own rules."""
    if failure.kind in NEVER_RETRY:
        return False
    advice = failure.should_retry
    return False if advice is None and failure.kind in SELDOM_RETRY else advice

"""Send a prepared request and receive its response, or one for what an upstream keeps; expected failures are values."""

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from dragoman.net.bodies import BudgetShare
from dragoman.net.body_threads import run_off_loop
from dragoman.net.client import ConnectionLost, IncomingResponse, SizeLimitExceeded, UpstreamTimeout
from dragoman.net.errors import BufferBudgetExceeded, InvalidResponse
from dragoman.net.headers import Headers
from dragoman.proxy.failures import add_retry_advice, adjust_reset_time, attribute_failure, redirect_failure
from dragoman.proxy.prepared import Prepared
from dragoman.proxy.reply_bounds import ERROR_BODY_S, MAX_REPLY_BYTES, no_room_failure, read_error
from dragoman.proxy.response_headers import drop_account_headers
from dragoman.proxy.step import ErrorReply, NoReply
from dragoman.translate.framing.known_secrets import redact_known, redact_known_in_fields
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.rejections.complaint import read_complaint

log = logging.getLogger(__name__)


async def send(prepared: Prepared, head_timeout_s: float, late: Callable[[], Failure]) -> IncomingResponse | NoReply:
    """Return the answer once its head has come; `late` makes the failure if that takes too long."""
    try:
        answer = await prepared.provider.send(prepared.out, head_timeout_s)
    except UpstreamTimeout as fault:
        return NoReply(connection_failure(prepared, fault) if fault.phase == "connect" else late())
    except ConnectionLost as fault:
        return NoReply(connection_failure(prepared, fault))
    if answer.status < 300:
        return answer
    try:
        if answer.status < 400:
            return NoReply(redirect_failure(prepared.provider.name, answer.status, answer.headers))
        silence_s = min(head_timeout_s, ERROR_BODY_S)
        late = partial(stalled_failure, prepared.provider, silence_s, ERROR_BODY_S)
        body = await receive(prepared, _read_words(answer, silence_s), late)
    finally:
        answer.close()
    if isinstance(body, Failure):
        return NoReply(body)
    return await run_off_loop(len(body), partial(_read_refusal, prepared, answer, body))


async def _read_words(answer: IncomingResponse, silence_s: float) -> bytes:
    """Return the body of an error; empty if it is too long, because its status still says what is wrong."""
    try:
        return await read_error(answer, silence_s)
    except SizeLimitExceeded:
        return b""


def _read_refusal(prepared: Prepared, answer: IncomingResponse, body: bytes) -> NoReply:
    now, body = time.time(), redact_known(body, prepared.secrets)
    failure = prepared.upstream.read_error(answer.status, dict(answer.headers), body)
    _log_refusal(prepared, failure)
    failure = attribute_failure(prepared, adjust_reset_time(failure, answer.headers, now))
    failure = add_retry_advice(failure, answer.headers, now, prepared.provider.account.exhausted_until)
    complaint = read_complaint(answer.status, body)
    own = prepared.find_error_body(body)
    if own is None or failure.kind in (Kind.CREDENTIAL, Kind.FORBIDDEN):
        return NoReply(failure, complaint=complaint)
    headers = answer.headers if prepared.owner else drop_account_headers(answer.headers)
    redacted = Headers(redact_known_in_fields(list(headers), prepared.secrets))
    return NoReply(failure, ErrorReply(answer.status, redacted, own), complaint)


def _log_refusal(prepared: Prepared, failure: Failure) -> None:
    """Log an error and the figures of the request, with `--verbose`: the log's usual line has neither.

    The message is logged only of upstreams that do not repeat what the user wrote: no log has that.
    """
    if not log.isEnabledFor(logging.DEBUG):
        return
    what = f"HTTP {failure.status} {failure.code}" if failure.code else f"HTTP {failure.status}"
    describe, body = prepared.upstream.describe_request, prepared.out.body
    if describe is None:
        log.debug("provider %s: %s. The request: %d bytes", prepared.provider.name, what, len(body))
    else:
        message = failure.message.rstrip(".")
        log.debug("provider %s: %s: %s. The request: %s", prepared.provider.name, what, message, describe(body))


def stalled_failure(provider: Provider, silence_s: float, total_s: float) -> Failure:
    name = provider.name
    why = f"Provider {name!r} sent no data for {silence_s:g} s in its answer, or has not ended it after {total_s:g} s."
    return Failure(Kind.TIMEOUT, why)


async def receive(prepared: Prepared, coming: Awaitable[bytes], late: Callable[[], Failure]) -> bytes | Failure:
    """Return what comes, or why it does not; `late` makes the failure if it only takes too long."""
    try:
        return await coming
    except UpstreamTimeout:
        return late()
    except SizeLimitExceeded:
        return oversized_failure(prepared.provider)
    except ConnectionLost as fault:
        return connection_failure(prepared, fault)
    except RequestError as refused:  # there is no room for it
        return refused.failure


def oversized_failure(provider: Provider) -> Failure:
    return Failure(Kind.UPSTREAM, f"Provider {provider.name!r} answered with too much data.")


def count_held(share: BudgetShare, provider: Provider, total: int, size: int) -> Failure | None:
    """Count `size` more bytes of a reply of which `total` are held now; return the failure if there is no room."""
    if total > MAX_REPLY_BYTES:
        return oversized_failure(provider)
    try:
        share.hold(size)
    except BufferBudgetExceeded:
        return no_room_failure()
    return None


def connection_failure(prepared: Prepared, fault: ConnectionLost | UpstreamTimeout) -> Failure:
    kind = Kind.CORRUPT if isinstance(fault, InvalidResponse) else Kind.LOST
    # A pooled connection that was only stale is no reason to wait; it still counts as an attempt.
    at_once = 0.0 if isinstance(fault, ConnectionLost) and fault.stale else None
    message = f"The connection to provider {prepared.provider.name!r} failed: {fault}"
    return Failure(kind, message, retry_after=at_once)

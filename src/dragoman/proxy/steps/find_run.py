"""Find the run whose reply a request gets: the one that it names, or that of the same request."""

from msgspec import Struct

from dragoman.net.http_request import HttpRequest
from dragoman.proxy.call import Call
from dragoman.proxy.ports import OtherWorkers
from dragoman.proxy.run_headers import (
    KEY,
    LAST_EVENT,
    RESUME,
    Cursor,
    choose_policy,
    digest_request,
    is_retry,
    make_unknown_run,
    read_cursor,
)
from dragoman.proxy.steps.parked_runs import BY_CURSOR, BY_KEY, BY_RETRY, HAS_LOST_RUN, ParkedRuns
from dragoman.state.parked_run import ParkedRun, RunOrigin
from dragoman.translate.hub.failure import Failure, Kind, RequestError

MAX_KEY_BYTES = 256


class JoinedRun(Struct, frozen=True):
    """The run whose reply a request gets, and where it begins to read it."""

    run: ParkedRun
    cursor: Cursor
    how: str


def find_parked(parked: ParkedRuns, call: Call) -> JoinedRun | None:
    """Return the run that the head of a request names; None if it names none. Raises RequestError without it."""
    get = call.headers.get
    if get(RESUME) is None and get(LAST_EVENT) is None:
        return None
    cursor = read_cursor(call.headers)
    run = parked.index.find(cursor.run)
    if run is None or (run.origin.owner, run.origin.path) != (call.tenant, call.path) or not run.status:
        raise make_unknown_run(cursor.run)
    call.record.stream = run.is_stream
    return JoinedRun(run, cursor, BY_CURSOR)


async def find_same(parked: ParkedRuns, call: Call) -> JoinedRun | None:
    """Return the run of the same request that its client sends again; None if there is none.

    It waits only before it searches: `open_run` must follow without a wait, or two requests would run.
    """
    headers, settings = call.headers, parked.settings()
    policy = choose_policy(headers, settings)
    if policy is None:
        return None
    origin = RunOrigin(call.tenant, call.path, await digest_request(call.http), headers.get(KEY), policy)
    if origin.key is not None:
        earlier, how = _find_keyed(parked, call, origin.key, origin.digest), BY_KEY
    else:
        has_retried = is_retry(headers, settings)
        earlier, how = parked.index.find_lost(call.tenant, origin.digest) if has_retried else None, BY_RETRY
    if earlier is None:
        call.parking = origin
        return None
    if how == BY_RETRY:
        earlier.is_taken = True
    return JoinedRun(earlier, Cursor(earlier.id, -1, with_ids=False), how)


async def find_lost_elsewhere(parked: ParkedRuns, group: OtherWorkers, request: HttpRequest, tenant: str) -> int | None:
    """Return the other worker that has the run of which a request without a key is a retry; None if none has."""
    headers, settings = request.headers, parked.settings()
    if choose_policy(headers, settings) is None or KEY in headers or not is_retry(headers, settings):
        return None
    digest = await digest_request(request)
    if parked.index.find_lost(tenant, digest) is not None:
        return None
    answers = await group.ask_all(HAS_LOST_RUN, {"tenant": tenant, "digest": digest.hex()})
    return next((worker for worker, answer in answers.items() if answer), None)


def _find_keyed(parked: ParkedRuns, call: Call, key: bytes, digest: bytes) -> ParkedRun | None:
    """Return the run that has this idempotency key. Raises RequestError if it is another request's."""
    if len(key) > MAX_KEY_BYTES:
        message = f"The Idempotency-Key has {len(key)} bytes, more than {MAX_KEY_BYTES}."
        raise RequestError(Failure(Kind.BAD_REQUEST, message))
    run = parked.index.find_keyed(call.tenant, call.path, key)
    if run is not None and run.origin.digest != digest:
        message = "This Idempotency-Key was used with another request. Use a new key for a new request."
        kind = Kind.CONFLICT if call.client.has_conflicts else Kind.BAD_REQUEST
        raise RequestError(Failure(kind, message, should_retry=False))
    return run

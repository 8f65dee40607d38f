"""Find the run whose reply a request gets: the one that it names, or that of the same request."""

from msgspec import Struct

from dragoman.net.http_request import HttpRequest
from dragoman.proxy.call import Call
from dragoman.proxy.ports import OtherWorkers
from dragoman.proxy.run_headers import (
    KEY,
    Cursor,
    choose_policy,
    digest_request,
    is_retry,
    make_unknown_run,
    read_cursor,
)
from dragoman.proxy.steps.parked_runs import BY_CURSOR, BY_KEY, BY_RETRY, HAS_LOST_RUN, ParkedRuns
from dragoman.state.parked_run import OnDisconnect, ParkedRun, RunOrigin
from dragoman.store.shared_runs import JoinedId, Opening
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.ports import EVENT_STREAM

MAX_KEY_BYTES = 256


class JoinedRun(Struct, frozen=True):
    """The run whose reply a request gets, and where it begins to read it."""

    run: ParkedRun
    cursor: Cursor
    how: str


async def find_parked(parked: ParkedRuns, call: Call) -> JoinedRun:
    """Return the run that the head of a request names. Raises RequestError if there is none."""
    cursor = read_cursor(call.headers)
    run = parked.index.find(cursor.run)
    if run is None and parked.replicas is not None:
        run = await parked.replicas.remote.find(cursor.run, call.tenant, call.path)
    if run is None or (run.origin.owner, run.origin.path) != (call.tenant, call.path) or not run.has_begun:
        raise make_unknown_run(cursor.run, may_be_elsewhere=parked.has_unknown_replicas)
    return JoinedRun(run, cursor, BY_CURSOR)


async def find_same(parked: ParkedRuns, call: Call, policy: OnDisconnect) -> JoinedRun | None:
    """Return the run of the same request that its client sends again; None if there is none: the call opens one.

    `policy`: what happens to the reply if the client leaves.

    It waits only before it searches here for the last time: `open_run` must follow without a wait, or two requests
    would run.
    """
    headers, settings = call.headers, parked.settings()
    origin = RunOrigin(call.tenant, call.path, await digest_request(call.http), headers.get(KEY), policy)
    run = ParkedRun(parked.worker, origin)
    run.model, run.wants_array = call.model, call.stream and call.stream_type != EVENT_STREAM
    has_retried = origin.key is None and is_retry(headers, settings)
    earlier = await _take_lost(parked, origin) if has_retried else _find_keyed(parked, call, origin)
    if earlier is None:
        earlier = await _open_or_join(parked, call, run, is_retry=has_retried)
    if earlier is None:
        call.parking = run
        return None
    return JoinedRun(earlier, Cursor(earlier.id, -1, with_ids=False), BY_RETRY if origin.key is None else BY_KEY)


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


async def _take_lost(parked: ParkedRuns, origin: RunOrigin) -> ParkedRun | None:
    """Return the run of the same request that its client left, for this retry alone."""
    while (run := parked.index.find_lost(origin.owner, origin.digest)) is not None:
        run.is_taken = True
        if parked.replicas is None or await parked.replicas.copies.take(run):
            return run
    return None


async def _open_or_join(parked: ParkedRuns, call: Call, run: ParkedRun, *, is_retry: bool) -> ParkedRun | None:
    """Return the run of the same request of any replica; None if there is none, and others find `run` from now on."""
    replicas = parked.replicas
    if replicas is None:
        return None
    opened = await replicas.copies.open(run, is_retry=is_retry)
    earlier = _find_keyed(parked, call, run.origin)
    if earlier is not None:  # opened here while the shared state did not answer
        replicas.copies.forget(run)
        return earlier
    if opened is Opening.CONFLICT:
        raise _make_conflict(call)
    if not isinstance(opened, JoinedId):
        return None
    earlier = parked.index.find(opened.id)
    if earlier is None:
        earlier = replicas.remote.join(opened.id, run.origin, run.model, wants_array=run.wants_array)
    earlier.is_taken = earlier.is_taken or is_retry
    return earlier


def _find_keyed(parked: ParkedRuns, call: Call, origin: RunOrigin) -> ParkedRun | None:
    """Return the run that has this idempotency key. Raises RequestError if it is another request's."""
    key = origin.key
    if key is None:
        return None
    if len(key) > MAX_KEY_BYTES:
        message = f"The Idempotency-Key has {len(key)} bytes, more than {MAX_KEY_BYTES}."
        raise RequestError(Failure(Kind.BAD_REQUEST, message))
    run = parked.index.find_keyed(call.tenant, call.path, key)
    if run is not None and run.origin.digest != origin.digest:
        raise _make_conflict(call)
    return run


def _make_conflict(call: Call) -> RequestError:
    message = "This Idempotency-Key was used with another request. Use a new key for a new request."
    kind = Kind.CONFLICT if call.client.has_conflicts else Kind.BAD_REQUEST
    return RequestError(Failure(kind, message, should_retry=False))

"""Replies that outlive the connection of their client, for clients that come back for the rest.

A request may name a run, or repeat the request of one: then it follows that run. Any other whose reply is to outlive
its client opens a run of its own.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from zlib import crc32

from msgspec import Struct

from dragoman.config.settings import ResponsesSettings
from dragoman.net.bodies import BudgetShare
from dragoman.net.body_threads import run_off_loop
from dragoman.net.headers import Headers
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink, SinkPhase
from dragoman.proxy.answer import SHUTTING_DOWN
from dragoman.proxy.call import Call
from dragoman.proxy.ports import OtherWorkers
from dragoman.proxy.reply_bounds import charge_bytes
from dragoman.proxy.response_writer import APART_S
from dragoman.state.parked_run import (
    MAX_RUN_BYTES,
    NOT_COUNTED,
    OnDisconnect,
    ParkedRun,
    ParkedSink,
    RunIndex,
    RunMemory,
)
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.ports import EVENT_STREAM
from dragoman.translate.protocols import REPLY_CHOICES

PARK, RESUME, LAST_EVENT = b"x-dragoman-park", b"x-dragoman-resume", b"last-event-id"
KEY, RETRY_COUNT = b"idempotency-key", b"x-stainless-retry-count"
POLICIES: dict[bytes, OnDisconnect] = {b"0": "cancel", b"1": "park", b"drain": "drain"}  # by the value of PARK
OWN_CHOICES = (b"x-dragoman-explain", b"x-dragoman-strict", b"x-dragoman-fallback-model")
ANSWER_HEADERS = (*REPLY_CHOICES, *OWN_CHOICES, b"accept", b"content-encoding")
MAX_KEY_BYTES = 256
HAS_LOST_RUN = "has-lost-run"  # a question to other workers
EVENTS_AT_ONCE = 256  # of those that a client comes back for
BYTES_AT_ONCE = 64 * 1024  # after which no further event is added to them
_OWN_ID = re.compile(rb"(?:\A|[\r\n])id:")
_CURSOR = re.compile(rb"(run_[0-9a-f]{48}):(-1|[0-9]{1,9})")

BY_KEY, BY_RETRY, BY_CURSOR = "key", "retry", "cursor"  # how a request gets the reply of an earlier one


class Cursor(Struct, frozen=True):
    """Where a request resumes a run."""

    run: str
    after: int  # the index of the last event that the client has; -1: none
    with_ids: bool  # it reads the ids of events


def read_cursor(headers: Headers) -> Cursor:
    """Return where a request resumes a run. Raises RequestError if it cannot be read."""
    given = headers.get(RESUME)
    with_ids = given is None
    if given is None:
        given = headers.get(LAST_EVENT) or b""
    found = _CURSOR.fullmatch(given)
    if found is None:
        raise _unknown_run(given[:80].decode("latin-1"))
    return Cursor(found[1].decode(), int(found[2]), with_ids)


def find_worker(request: HttpRequest, tenant: str, count: int) -> int | None:
    """Return which of `count` workers has the run that a request resumes, or runs what has its idempotency key.

    None if the request names neither, or a run that no worker has.
    """
    resumed = request.headers.get(RESUME) or request.headers.get(LAST_EVENT)
    if resumed is not None:
        found = _CURSOR.fullmatch(resumed)
        worker = count if found is None else int(found[1][4:6], 16)
        return worker if worker < count else None
    key = request.headers.get(KEY)
    if key is None:
        return None
    return crc32(b"%b\0%b\0%b" % (tenant.encode(), request.path.encode(errors="surrogatepass"), key)) % count


class JoinedRun(Struct, frozen=True):
    """The run whose reply a request gets, and where it begins to read it."""

    run: ParkedRun
    cursor: Cursor
    how: str


class Search(Struct, frozen=True):
    """What a call is known by that was searched for and not found."""

    digest: bytes  # of everything that decides the answer
    key: bytes | None  # its idempotency key
    policy: OnDisconnect


class ParkedRuns:
    """The runs of this process that a client may come back to."""

    def __init__(self, settings: Callable[[], ResponsesSettings], index: RunMemory | None = None) -> None:
        self.worker = 0  # the number of this process among the workers of the gateway
        self._settings = settings
        self._index: RunMemory = index or RunIndex()
        self.joined = Counter({BY_KEY: 0, BY_RETRY: 0, BY_CURSOR: 0})

    @property
    def count(self) -> int:
        return len(self._index)

    @property
    def size(self) -> int:
        """The bytes that all runs occupy."""
        return self._index.size

    def find_parked(self, call: Call) -> JoinedRun | None:
        """Return the run that the head of a request names; None if it names none. Raises RequestError without it."""
        get = call.headers.get
        if get(RESUME) is None and get(LAST_EVENT) is None:
            return None
        cursor = read_cursor(call.headers)
        run = self._index.find(cursor.run)
        if run is None or run.owner != call.tenant or run.path != call.path or not run.status:
            raise _unknown_run(cursor.run)
        call.record.stream = run.is_stream
        return JoinedRun(run, cursor, BY_CURSOR)

    async def find_same(self, call: Call) -> JoinedRun | None:
        """Return the run of the same request that its client sends again; None if there is none.

        It waits only before it searches: `open_run` must follow without a wait, or two requests would run.
        """
        headers = call.headers
        policy = self.choose_policy(headers)
        if policy is None:
            return None
        digest, key = await _digest(call.http), headers.get(KEY)
        if key is not None:
            earlier, how = self._find_keyed(call, key, digest), BY_KEY
        else:
            is_retry = _is_retry(headers, self._settings())
            earlier, how = self._index.find_lost(call.tenant, digest) if is_retry else None, BY_RETRY
        if earlier is None:
            call.parking = Search(digest, key, policy)
            return None
        if how == BY_RETRY:
            earlier.is_taken = True
        return JoinedRun(earlier, Cursor(earlier.id, -1, with_ids=False), how)

    def open_run(self, call: Call, sink: ReplySink) -> "OpenRun":
        """Return a context with the sink of a call: for one that may be parked, a tee of its run and its client."""
        return OpenRun(self, call, sink)

    def choose_policy(self, headers: Headers) -> OnDisconnect | None:
        """Return what happens to a reply whose client leaves: as the request says, else as the configuration does.

        None: the reply is cancelled, and needs no run.
        """
        key, requested, policy = headers.get(KEY), headers.get(PARK), self._settings().on_disconnect
        if key is None:
            policy = policy if requested is None else POLICIES.get(requested, policy)
            return None if policy == "cancel" else policy
        return POLICIES.get(requested or b"", "park" if policy == "cancel" else policy)

    def join_group(self, group: OtherWorkers) -> None:
        """Give new runs the number of this worker, and answer other workers that look for a run."""
        self.worker = group.number
        group.answer(HAS_LOST_RUN, self._answer_has_lost_run)

    async def find_lost_elsewhere(self, group: OtherWorkers, request: HttpRequest, tenant: str) -> int | None:
        """Return the other worker that has the run of which a request without a key is a retry; None if none has."""
        headers = request.headers
        if self.choose_policy(headers) is None or KEY in headers or not _is_retry(headers, self._settings()):
            return None
        digest = await _digest(request)
        if self._index.find_lost(tenant, digest) is not None:
            return None
        answers = await group.ask_all(HAS_LOST_RUN, {"tenant": tenant, "digest": digest.hex()})
        return next((worker for worker, answer in answers.items() if answer), None)

    async def _answer_has_lost_run(self, question: dict[str, str]) -> bytes:
        run = self._index.find_lost(question["tenant"], bytes.fromhex(question["digest"]))
        return b"" if run is None else b"yes"

    def _find_keyed(self, call: Call, key: bytes, digest: bytes) -> ParkedRun | None:
        """Return the run that has this idempotency key. Raises RequestError if it is another request's."""
        if len(key) > MAX_KEY_BYTES:
            message = f"The Idempotency-Key has {len(key)} bytes, more than {MAX_KEY_BYTES}."
            raise RequestError(Failure(Kind.BAD_REQUEST, message))
        run = self._index.find_keyed(call.tenant, call.path, key)
        if run is not None and run.digest != digest:
            message = "This Idempotency-Key was used with another request. Use a new key for a new request."
            kind = Kind.CONFLICT if call.client.has_conflicts else Kind.BAD_REQUEST
            raise RequestError(Failure(kind, message, should_retry=False))
        return run

    def begin(self, call: Call, search: Search, client: ReplySink) -> tuple[ParkedRun, ParkedSink]:
        """Register the run of a call, so that others find it, and return it with the tee that its reply goes to."""
        run = ParkedRun(self.worker, call.tenant, call.path, search.digest, search.key, search.policy)
        run.model, run.wants_array = call.model, call.stream and call.stream_type != EVENT_STREAM
        task = asyncio.current_task()
        assert task is not None
        tee = ParkedSink(run, client, self._record_growth)
        run.stop = partial(tee.lose_reader, task.cancel)  # no client reads it, so that it ends without an error event
        call.record.run = run.id
        self._index.add(run)
        client.on_reader_gone(partial(self._leave, run))
        return run, tee

    def end(self, run: ParkedRun, tee: ParkedSink, client: ReplySink, fault: BaseException | None) -> None:
        """End a run whose call has ended; one that failed is forgotten, so that a retry runs again."""
        if fault is not None:
            run.failure = fault.failure if isinstance(fault, RequestError) else SHUTTING_DOWN
            self._index.remove(run)
        client.on_reader_gone(None)
        run.clients -= not client.reader_gone
        run.is_delivered = run.is_delivered or not client.reader_gone
        run.end(whole=tee.phase is SinkPhase.ENDED)  # perhaps with an error event
        run.release()
        self._index.record_left(run)
        run.clear_timer()
        if run.is_resumable and run.failure is None:
            self._index.record_end(run)
            run.set_timer(self._settings().park_s, partial(self._index.remove, run))

    def _record_growth(self, run: ParkedRun, size: int) -> None:
        self._index.record_growth(run, size)
        if not run.is_resumable and not run.clients and run.policy != "drain":
            run.stop()

    def _leave(self, run: ParkedRun) -> None:
        """Note that a client has left; stop the run, at once or later, if it was the last one."""
        run.clients -= 1
        self._index.record_left(run)
        if run.clients or run.is_done or run.policy == "drain":
            return
        if run.policy == "cancel" or not run.is_resumable:
            run.stop()
        else:
            run.set_timer(self._settings().park_s, run.stop)

    async def follow(self, call: Call, sink: ReplySink, joined: JoinedRun) -> None:
        """Send what a client does not have yet of a run, then what is still written."""
        run, share = joined.run, call.buffered
        sink.allow_leaving()
        self.joined[joined.how] += 1
        call.record.record_joined(run.id, run.model)
        run.clients += 1
        if not run.is_done:
            run.clear_timer()
        try:
            while not run.status and not run.is_done:
                await run.wait()
            if run.is_stream:
                await _send_events(joined, share, sink, call.id)
            else:
                await _send_whole(joined, share, sink, call.id)
            run.is_delivered = run.is_delivered or sink.phase is SinkPhase.ENDED
        finally:
            self._leave(run)


class OpenRun(Struct, eq=False):
    """Where a call is answered that may outlive its client; without a run, nothing but its sink."""

    _runs: ParkedRuns
    _call: Call
    _client: ReplySink
    _run: ParkedRun | None = None
    _tee: ParkedSink | None = None

    def __enter__(self) -> ReplySink:
        search = self._call.parking
        if search is None:
            return self._client
        self._run, self._tee = self._runs.begin(self._call, search, self._client)
        return self._tee

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        run, tee = self._run, self._tee
        if run is not None and tee is not None:
            self._runs.end(run, tee, self._client, fault)


async def _send_events(joined: JoinedRun, share: BudgetShare, sink: ReplySink, request_id: str) -> None:
    run, cursor = joined.run, joined.cursor
    sink.begin(200, run.headers_for(request_id))
    await sink.send(b"")
    place, signs = 0, run.signs
    while run.is_resumable:
        pending = _take_events(run.blocks, place)
        if pending:
            place += len(pending)
            # The bytes of the events after the cursor.
            selected = []
            for number, block in pending:
                if number > cursor.after or number == NOT_COUNTED:
                    is_marked = cursor.with_ids and number != NOT_COUNTED
                    selected.append(_mark(b"id: %b:%d" % (run.id.encode(), number), block) if is_marked else block)
            await _send_counted(share, sink, b"".join(selected))
        elif run.is_done:
            break
        elif signs != run.signs:
            signs = run.signs
            await sink.send(b"" if cursor.with_ids else run.sign)
        else:
            await run.wait()
    if not run.is_resumable or not run.is_whole:
        sink.abort()
        return
    if run.rest and not run.wants_array:  # it is not an event: some clients must read it by itself
        await asyncio.sleep(APART_S)
    sink.end(run.rest)


async def _send_whole(joined: JoinedRun, share: BudgetShare, sink: ReplySink, request_id: str) -> None:
    run = joined.run
    while not run.is_done:
        await run.wait()
    if run.failure is not None:
        raise RequestError(run.failure)
    if not run.is_resumable:
        message = f"The reply to this request is larger than {MAX_RUN_BYTES} bytes, and was not kept."
        raise RequestError(Failure(Kind.BAD_REQUEST, message, should_retry=False))
    if joined.cursor.after != -1:
        raise _unknown_run(run.id)
    body = b"".join([block for _, block in run.blocks])
    charge_bytes(share, len(body))
    sink.respond(run.status, run.headers_for(request_id), body)


def _is_retry(headers: Headers, settings: ResponsesSettings) -> bool:
    """Whether a request may be the retry of one whose client left. Clients of most SDKs count their retries."""
    count = headers.get(RETRY_COUNT)
    return settings.join_unmarked_retries if count is None else count.isdigit() and int(count) > 0


def _take_events(blocks: list[tuple[int, bytes]], place: int) -> list[tuple[int, bytes]]:
    """Return the events from this place on that are sent at once: a few large ones, or many small ones."""
    size = 0
    for end in range(place, min(place + EVENTS_AT_ONCE, len(blocks))):
        size += len(blocks[end][1])
        if size > BYTES_AT_ONCE:
            return blocks[place : end + 1]
    return blocks[place : place + EVENTS_AT_ONCE]


async def _send_counted(share: BudgetShare, sink: ReplySink, data: bytes) -> None:
    """Send bytes, and count them in what the request holds until its client has read them.

    Raises BufferBudgetExceeded.
    """
    held = share.held
    share.hold(len(data))
    try:
        await sink.send(data)
    finally:
        share.release_to(held)


def _mark(id: bytes, event: bytes) -> bytes:
    """Return an event with this id: last if the upstream gave it another one, since the last one counts."""
    if not _OWN_ID.search(event):
        return id + b"\n" + event
    end = b"\r\n" if event.endswith(b"\r\n") else event[-1:]
    return event[: -len(end)] + id + end + end


async def _digest(request: HttpRequest) -> bytes:
    """Return a digest of everything that decides the answer to a request.

    Its body counts as it was sent: other workers have not unpacked it.
    """
    body = await request.body()
    return await run_off_loop(len(body), partial(_digest_parts, request, body))


def _digest_parts(request: HttpRequest, body: bytes) -> bytes:
    fields = [request.headers.get(name) or b"" for name in ANSWER_HEADERS]
    parts = (request.method.encode(), request.path.encode(), request.query.encode(), *fields, body)
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def _unknown_run(id: str) -> RequestError:
    message = f"Run {id!r} not found. It may have expired; send the request again."
    return RequestError(Failure(Kind.NOT_FOUND, message, code="run_not_found"))

"""Replies that outlive the connection of their client, for clients that come back for the rest."""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from zlib import crc32

from msgspec import Struct

from dragoman.config.settings import ResponsesSettings
from dragoman.flow.call import Call
from dragoman.flow.request_record import RequestRecord
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.bodies import ByteBudget
from dragoman.net.detached import NoConnection
from dragoman.net.errors import ClientDisconnected
from dragoman.net.exchange import Exchange, ResponseState
from dragoman.net.headers import Header, Headers
from dragoman.net.request_head import RequestHead
from dragoman.net.tasks import spawn

AnswerCall = Callable[[Exchange, Call], Awaitable[None]]

PARK, RESUME, LAST_EVENT = b"x-dragoman-park", b"x-dragoman-resume", b"last-event-id"
RUN, KEY = b"x-dragoman-run", b"idempotency-key"
ANSWER_HEADERS = (b"anthropic-version", b"anthropic-beta", b"x-dragoman-explain", b"x-dragoman-strict", b"accept")
CHECK_S = 0.25  # how often it is checked whether the client is still there
MAX_RUN_BYTES = 32 * 1024 * 1024
MAX_BYTES = 256 * 1024 * 1024  # of all runs
MAX_KEY_BYTES = 256
_CURSOR = re.compile(rb"(run_[0-9a-f]{48}):(-1|[0-9]{1,9})")
_BLOCK_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DONE = b"data: [DONE]"


class Cursor(Struct, frozen=True):
    run: str
    after: int  # the index of the last event that the client has; -1: none
    with_ids: bool  # it reads the ids of events


def read_cursor(headers: Headers) -> Cursor | None:
    """Return where a request resumes a run; None if it does not. Raises RequestError if it cannot be read."""
    given = headers.get(RESUME)
    with_ids = given is None
    if given is None:
        given = headers.get(LAST_EVENT)
    if given is None:
        return None
    found = _CURSOR.fullmatch(given)
    if found is None:
        raise _unknown_run(given[:80].decode("latin-1"))
    return Cursor(found[1].decode(), int(found[2]), with_ids)


def find_worker(exchange: Exchange, tenant: str, count: int) -> int | None:
    """Return which of `count` workers has the run that a request resumes, or runs what has its idempotency key.

    None if the request names neither, or a run that no worker has.
    """
    resumed = exchange.headers.get(RESUME) or exchange.headers.get(LAST_EVENT)
    if resumed is not None:
        found = _CURSOR.fullmatch(resumed)
        worker = count if found is None else int(found[1][4:6], 16)
        return worker if worker < count else None
    key = exchange.headers.get(KEY)
    if key is None:
        return None
    return crc32(b"%b\0%b\0%b" % (tenant.encode(), exchange.path.encode(errors="surrogatepass"), key)) % count


class Run:
    """One reply: its head, and its events as they are written."""

    def __init__(self, worker: int, owner: str, path: str, digest: bytes, key: bytes | None) -> None:
        self.id = f"run_{worker:02x}{secrets.token_hex(23)}"
        self.owner = owner
        self.path = path
        self.digest = digest  # of everything that decides the answer
        self.key = key
        self.status = 0
        self.headers: Sequence[Header] = ()
        self.blocks: list[tuple[int, bytes]] = []  # (number of the event, its bytes); -1: [DONE], or a whole body
        self.is_stream = False
        self.is_done = False
        self.is_whole = False  # it ended with its last event, not in the middle
        self.followers = 0
        self.size = 0
        self.ended_at = 0.0
        self._number = 0
        self._partial = b""
        self._news = asyncio.Event()

    def headers_for(self, request_id: str) -> list[Header]:
        """Return the headers for another request that gets this reply: with its own id."""
        id = request_id.encode()
        own = [
            (name, id) if name in (b"x-request-id", b"request-id") else (name, value) for name, value in self.headers
        ]
        return [*own, (RUN, self.id.encode())]

    # A listener of the exchange

    def on_head(self, status: int, headers: Sequence[Header]) -> None:
        self.status, self.headers = status, headers
        self.is_stream = any(name == b"content-type" and b"event-stream" in value for name, value in headers)
        self._wake()

    def on_body(self, data: bytes) -> None:
        self.size += len(data)
        if not self.is_stream:
            self.blocks.append((-1, data))
            return
        text, start = self._partial + data, 0
        for end in _BLOCK_END.finditer(text):
            self._add(text[start : end.end()])
            start = end.end()
        self._partial = text[start:]
        self._wake()

    def on_end(self) -> None:
        return

    def end(self, *, whole: bool) -> None:
        if self._partial:
            self._add(self._partial)
        self.is_done, self.is_whole, self.ended_at = True, whole, time.monotonic()
        self._wake()

    async def wait(self) -> None:
        """Wait until something is added, or the run ends."""
        await self._news.wait()

    def _add(self, block: bytes) -> None:
        lines = block.strip().splitlines()
        if not lines or all(line.startswith(b":") for line in lines) or lines[0] == b"event: ping":
            return  # a sign of life; what follows it is the same with or without it
        if lines[0].startswith(_DONE):
            self.blocks.append((-1, block))
            return
        self.blocks.append((self._number, block))
        self._number += 1

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class RunConnection(NoConnection):
    """The inner connection of a run: blocked while its client is, as long as that is there."""

    def __init__(self, client: Exchange) -> None:
        super().__init__(client.address)
        self._client = client

    @property
    def blocked(self) -> bool:
        return not self._client.gone and self._client.is_blocked

    async def writable(self) -> None:
        try:
            await self._client.writable()
        except ClientDisconnected:
            return  # the run goes on without it


class Tee:
    """A listener that passes a reply on to the client as long as it is there, and keeps it."""

    def __init__(self, run: Run, client: Exchange) -> None:
        self._run = run
        self._client = client

    def on_head(self, status: int, headers: Sequence[Header]) -> None:
        self._run.on_head(status, headers)
        if self._run.is_stream:
            self._client.start(status, [*headers, (RUN, self._run.id.encode())])

    def on_body(self, data: bytes) -> None:
        self._run.on_body(data)
        if self._run.is_stream:
            self._client.write(data)
        else:
            self._client.respond(self._run.status, [*self._run.headers, (RUN, self._run.id.encode())], data)

    def on_end(self) -> None:
        if self._run.is_stream:
            self._client.finish()


class ParkedRuns:
    """The runs of this process that a client may come back to."""

    def __init__(self, settings: Callable[[], ResponsesSettings]) -> None:
        self.worker = 0  # the number of this process among the workers of the gateway
        self._settings = settings
        self._runs: dict[str, Run] = {}
        self._by_key: dict[tuple[str, str, bytes], Run] = {}
        self.joined = 0

    @property
    def count(self) -> int:
        return len(self._runs)

    async def resume(self, exchange: Exchange, record: RequestRecord) -> bool:
        """Answer a request that resumes a run; return whether it does. Raises RequestError if there is no such run."""
        cursor = read_cursor(exchange.headers)
        if cursor is None:
            return False
        run = self._runs.get(cursor.run)
        if run is None or run.owner != record.tenant or run.path != exchange.path or not run.is_stream:
            raise _unknown_run(cursor.run)
        record.stream = True
        await self._follow(run, exchange, cursor, record.id)
        return True

    async def answer(self, answer: AnswerCall, exchange: Exchange, call: Call) -> None:
        """Answer a call; park its reply if the client or the configuration wants that."""
        key, policy = exchange.headers.get(KEY), self._settings().on_disconnect
        is_parked = key is not None or exchange.headers.get(PARK) == b"1" or policy != "cancel"
        if not is_parked or (not call.stream and key is None):
            await answer(exchange, call)
            return
        digest = _digest(exchange, call.body)
        earlier = None if key is None else self._find(call, exchange.path, key, digest)
        if earlier is not None:
            self.joined += 1
            await self._follow(earlier, exchange, Cursor(earlier.id, -1, with_ids=False), call.id)
            return
        await self._run(Run(self.worker, call.tenant, exchange.path, digest, key), answer, exchange, call)

    def _find(self, call: Call, path: str, key: bytes, digest: bytes) -> Run | None:
        """Return the run that has this idempotency key. Raises RequestError if it is another request's."""
        if len(key) > MAX_KEY_BYTES:
            message = f"The Idempotency-Key has {len(key)} bytes, more than {MAX_KEY_BYTES}."
            raise RequestError(Failure(Kind.BAD_REQUEST, message))
        run = self._by_key.get((call.tenant, path, key))
        if run is not None and run.digest != digest:
            message = "This Idempotency-Key was used with another request. Use a new key for a new request."
            kind = Kind.CONFLICT if call.client.has_conflicts else Kind.BAD_REQUEST
            raise RequestError(Failure(kind, message, should_retry=False))
        return run

    async def _run(self, run: Run, answer: AnswerCall, exchange: Exchange, call: Call) -> None:
        head = RequestHead(
            fields=list(exchange.headers), method=exchange.method, path=exchange.path, raw_path=exchange.raw_path
        )
        inner = Exchange(head, RunConnection(exchange), ByteBudget(MAX_RUN_BYTES))
        inner.listener = tee = Tee(run, exchange)
        exchange.outlives_client = True
        self._add(run)
        task = asyncio.current_task()
        assert task is not None
        watching = spawn(self._watch(run, exchange, task), name="parked reply")
        try:
            await answer(inner, call)
        except BaseException:
            self._remove(run)  # a retry runs again
            if inner.reply is ResponseState.ENDED:  # it was broken off with an error event
                tee.on_end()
            raise
        else:
            tee.on_end()
        finally:
            watching.cancel()
            run.end(whole=inner.started)
            self._remove_old()

    async def _watch(self, run: Run, exchange: Exchange, task: asyncio.Task[object]) -> None:
        """Cancel a run whose client does not come back in time, or that becomes too large to keep."""
        gone_at: float | None = None
        while True:
            await asyncio.sleep(CHECK_S)
            settings = self._settings()
            is_waiting = exchange.gone and not run.followers
            gone_at = (gone_at or time.monotonic()) if is_waiting else None
            is_late = gone_at is not None and time.monotonic() - gone_at > settings.park_s
            if (is_late and settings.on_disconnect != "drain") or (is_waiting and run.size > MAX_RUN_BYTES):
                task.cancel()
                return

    async def _follow(self, run: Run, exchange: Exchange, cursor: Cursor, request_id: str) -> None:
        """Send what a client does not have yet, then what is still written."""
        run.followers += 1
        try:
            while not run.status and not run.is_done:
                await run.wait()
            if not run.is_stream:
                await self._follow_whole(run, exchange, request_id)
                return
            exchange.start(200, run.headers_for(request_id))
            place = 0
            while True:
                while place < len(run.blocks):
                    number, block = run.blocks[place]
                    place += 1
                    if number > cursor.after or number == -1:
                        mark = b"id: %b:%d\n" % (run.id.encode(), number) if cursor.with_ids and number >= 0 else b""
                        await exchange.send(mark + block)
                if run.is_done:
                    break
                await run.wait()
            exchange.finish()
        finally:
            run.followers -= 1

    async def _follow_whole(self, run: Run, exchange: Exchange, request_id: str) -> None:
        while not run.is_done:
            await run.wait()
        if not run.status:
            raise _unknown_run(run.id)
        body = b"".join(block for _, block in run.blocks)
        exchange.respond(run.status, run.headers_for(request_id), body)

    def _add(self, run: Run) -> None:
        self._remove_old()
        self._runs[run.id] = run
        if run.key is not None:
            self._by_key[run.owner, run.path, run.key] = run

    def _remove(self, run: Run) -> None:
        self._runs.pop(run.id, None)
        if run.key is not None:
            self._by_key.pop((run.owner, run.path, run.key), None)

    def _remove_old(self) -> None:
        """Remove ended runs whose client did not come back in time, and the oldest while all are too large."""
        oldest_kept = time.monotonic() - self._settings().park_s
        ended = [run for run in self._runs.values() if run.is_done]
        total = sum(run.size for run in self._runs.values())
        for run in ended:
            if run.ended_at < oldest_kept or total > MAX_BYTES:
                self._remove(run)
                total -= run.size


def _digest(exchange: Exchange, body: bytes) -> bytes:
    """Return a digest of everything that decides the answer to a request."""
    fields = [exchange.headers.get(name) or b"" for name in ANSWER_HEADERS]
    parts = (exchange.method.encode(), exchange.path.encode(), exchange.query.encode(), *fields, body)
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()


def _unknown_run(id: str) -> RequestError:
    message = f"Run {id!r} not found. It may have expired; send the request again."
    return RequestError(Failure(Kind.NOT_FOUND, message, code="run_not_found"))

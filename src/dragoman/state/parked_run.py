"""Replies that are kept while they are written, so that their clients can come back for the rest.

They are found by id, by idempotency key and by request, and bounded in memory.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, Protocol

from msgspec import Struct

from dragoman.net.errors import ClientDisconnected, ResponseOrderError
from dragoman.net.headers import Header
from dragoman.net.limits import wake
from dragoman.net.sink import DetachedSink, ReplySink, SinkPhase
from dragoman.translate.framing.jsonscan import IN_BYTES, BraceCounter
from dragoman.translate.hub.failure import Failure

RUN = b"x-dragoman-run"
ID_HEADERS = (b"x-request-id", b"x-dragoman-request-id", b"request-id")
NOT_COUNTED = -1  # the number of blocks that every client gets: [DONE], and the parts of a whole body
BLOCK_BYTES = 160  # what keeping a block costs beside its bytes: two objects, a number and a place in a list
_BLOCK_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DONE = (b"data: [DONE]", b"data:[DONE]")
_PING = re.compile(rb"event: ?ping[\r\n]")

OnDisconnect = Literal["cancel", "park", "drain"]
MAX_RUN_BYTES = 32 * 1024 * 1024
MAX_OWNER_BYTES = 128 * 1024 * 1024  # of all runs of one client key
MAX_BYTES = 256 * 1024 * 1024  # of all runs
EMPTY_RUN_BYTES = 2048  # what a run costs before its first event


class StreamSplitter(Protocol):
    """Splits a stream into its events, without changing a byte."""

    def feed(self, data: bytes) -> Sequence[bytes]: ...
    @property
    def rest(self) -> bytes: ...  # what follows the last whole event


class EventSplitter:
    """Splits server-sent events."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> Sequence[bytes]:
        held, start, events = self._held, 0, []
        held += data
        for end in _BLOCK_END.finditer(held, self._searched):
            events.append(bytes(held[start : end.end()]))
            start = end.end()
        del held[:start]
        self._searched = max(0, len(held) - 3)  # the longest end of an event may be cut
        return events

    @property
    def rest(self) -> bytes:
        return bytes(self._held)


class ArraySplitter:
    """Splits a JSON array of objects: each event begins with what separates it from the one before."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._braces = BraceCounter(IN_BYTES)

    def feed(self, data: bytes) -> Sequence[bytes]:
        braces, events, start, at = self._braces, [], 0, 0
        while at < len(data):
            if not braces.depth:
                at = data.find(b"{", at) + 1
                if not at:
                    break
                braces.depth = 1
                continue
            at = braces.advance(data, at)
            if not braces.depth:
                events.append(b"".join((*self._held, data[start:at])))
                self._held.clear()
                start = at
        self._held.append(data[start:])
        return events

    @property
    def rest(self) -> bytes:
        return b"".join(self._held)


class RunRequestKey(Struct, frozen=True):
    """What a retry has in common with the request that it repeats."""

    owner: str
    path: str
    digest: bytes  # of everything that decides the answer
    key: bytes | None = None  # the idempotency key


class ParkedRun:
    """One reply: its head, and its events as they are written."""

    def __init__(self, worker: int, request: RunRequestKey, policy: OnDisconnect) -> None:
        self.id = f"run_{worker:02x}{secrets.token_hex(23)}"
        self.owner = request.owner
        self.path = request.path
        self.digest = request.digest
        self.key = request.key
        self.policy = policy
        self.model = ""
        self.wants_array = False  # the request is for a stream that is one JSON array
        self.status = 0
        self.headers: Sequence[Header] = ()
        self.blocks: list[tuple[int, bytes]] = []  # (number of the event, its bytes)
        self.rest = b""  # what follows the last event; known at the end
        self.sign = b""  # the last sign of life
        self.signs = 0  # how many there were
        self.size = 0  # the bytes that it occupies
        self.clients = 1  # how many connections get it now
        self.is_stream = False
        self.is_done = False
        self.is_whole = False  # it ended as its protocol wants it, not in the middle
        self.is_resumable = True  # False: it became too large
        self.is_delivered = False  # a client has got its end
        self.is_taken = False  # by a retry
        self.failure: Failure | None = None  # why there is no reply
        self.stop: Callable[[], None] = _do_nothing
        self.timer: asyncio.TimerHandle | None = None  # until it is stopped, or removed
        self._number = 0
        self._splitter: StreamSplitter | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_lost(self) -> bool:
        """Whether its client left before the end, and no other has it."""
        return self.is_resumable and not (self.clients or self.is_delivered or self.is_taken)

    def headers_for(self, request_id: str) -> list[Header]:
        """Return the headers for another request that gets this reply: with its own id."""
        id = request_id.encode()
        own = [(name, id) if name in ID_HEADERS else (name, value) for name, value in self.headers]
        return [*own, (RUN, self.id.encode())]

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        self.status, self.headers = status, headers
        self.size += sum(len(name) + len(value) for name, value in headers)
        if any(name == b"content-type" and b"event-stream" in value for name, value in headers):
            self._splitter = EventSplitter()
        elif self.wants_array:
            self._splitter = ArraySplitter()
        self.is_stream = self._splitter is not None
        self._wake()

    def add(self, data: bytes) -> None:
        if not self.is_resumable:
            return
        self.size += len(data)
        if self._splitter is None:
            self.blocks.append((NOT_COUNTED, data))
            return
        for event in self._splitter.feed(data):
            self._add_event(event)
        self._wake()

    def end(self, *, whole: bool) -> None:
        if self.is_resumable and self._splitter is not None:
            self.rest = self._splitter.rest
        self._splitter = None
        self.is_done, self.is_whole = True, whole
        self._wake()

    def forget(self) -> None:
        """Give up what is kept; the client that is connected still gets everything."""
        self.is_resumable = False
        self.blocks.clear()
        self.sign, self._splitter = b"", None
        self._wake()

    def release(self) -> None:
        """Let go of the request that writes this reply: it has ended, and the reply may be kept for long."""
        self.stop = _do_nothing

    def set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        self.clear_timer()
        self.timer = asyncio.get_running_loop().call_later(seconds, callback)

    def clear_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    async def wait(self) -> None:
        """Wait until something is added, or the run ends."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _add_event(self, event: bytes) -> None:
        if _is_sign_of_life(event):  # what follows it is the same with or without it
            self.size -= len(self.sign)
            self.sign, self.signs = event, self.signs + 1
            return
        self.size += BLOCK_BYTES
        if event.startswith(_DONE):
            self.blocks.append((NOT_COUNTED, event))
            return
        self.blocks.append((self._number, event))
        self._number += 1

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                wake(waiter)


def _do_nothing() -> None:
    return


def _is_sign_of_life(event: bytes) -> bool:
    """Whether an event is a comment or a ping. A keep-alive of Gemini is an event like any other."""
    if event.startswith(b":"):
        return all(line.startswith(b":") for line in event.strip().splitlines())
    return _PING.match(event) is not None


class ParkedSink(DetachedSink):
    """A tee: a reply goes to its run, and to the run's first client as long as that is there.

    It never waits for a client that has left. A listener of the client's sink, such as a capture, gets the whole reply
    in any case.
    """

    def __init__(self, run: ParkedRun, client: ReplySink, record_growth: Callable[[ParkedRun, int], None]) -> None:
        super().__init__()
        self._run = run
        self._client = client
        self._record_growth = record_growth

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        if self._is_over:
            return
        if self.phase >= SinkPhase.SENT:
            raise ResponseOrderError("a reply was already sent")
        self.phase = SinkPhase.ENDED
        self._keep_head(status, headers)
        self._keep(body)
        headers = [*headers, (RUN, self._run.id.encode())]
        if not self._client.reader_gone:
            self._client.respond(status, headers, body)
        elif self._client.listener is not None:
            self._client.listener.on_head(status, headers)
            self._client.listener.on_body(body)

    def write(self, data: bytes) -> bool:
        if self.phase is not SinkPhase.SENT or self.reader_gone:
            if self._is_over:
                return False
            self._check_begun()
            self.phase = SinkPhase.SENT
        return self._take_body(data)

    def end(self, last: bytes = b"", trailers: Sequence[Header] = ()) -> None:
        if self._is_over:
            return
        self._check_begun()
        self.phase = SinkPhase.ENDED
        self._keep(last)
        if not self._client.reader_gone:
            self._client.end(last, trailers)
        elif self._client.listener is not None:
            self._client.listener.on_body(last)

    async def wait_writable(self) -> None:
        await super().wait_writable()
        with suppress(ClientDisconnected):  # the run goes on without it
            await self._client.wait_writable()

    def abort(self) -> None:
        super().abort()
        self._client.abort()

    def _take_head(self, status: int, headers: Sequence[Header]) -> None:
        self._keep_head(status, headers)
        headers = [*headers, (RUN, self._run.id.encode())]
        if not self._client.reader_gone:
            self._client.begin(status, headers)
        elif self._client.listener is not None:
            self._client.listener.on_head(status, headers)

    def _take_body(self, data: bytes) -> bool:
        self._keep(data)
        client = self._client
        if not client.reader_gone:
            return client.write(data)
        if client.listener is not None:
            client.listener.on_body(data)
        return True

    def _keep_head(self, status: int, headers: Sequence[Header]) -> None:
        before = self._run.size
        self._run.begin(status, headers)
        self._record_growth(self._run, self._run.size - before)

    def _keep(self, data: bytes) -> None:
        before = self._run.size
        self._run.add(data)
        self._record_growth(self._run, self._run.size - before)


class RunMemory(Protocol):
    """The runs that clients may come back to. It is searched in many requests: nothing here waits."""

    @property
    def size(self) -> int:
        """The bytes that all runs occupy."""

    def __len__(self) -> int: ...

    def find(self, id: str) -> ParkedRun | None:
        """Return the run with this id."""

    def find_keyed(self, owner: str, path: str, key: bytes) -> ParkedRun | None:
        """Return the run of an owner that has this idempotency key."""

    def find_lost(self, owner: str, digest: bytes) -> ParkedRun | None:
        """Return the oldest run of the same request whose client left before the end."""

    def add(self, run: ParkedRun) -> None:
        """Let requests find a run from now on."""

    def record_growth(self, run: ParkedRun, size: int) -> None:
        """Count what was added to a run; forget it if there is no room."""

    def record_end(self, run: ParkedRun) -> None:
        """Let a run that has ended make room for others."""

    def record_left(self, run: ParkedRun) -> None:
        """Stop counting a run that was removed, once no client gets it any more."""

    def remove(self, run: ParkedRun) -> None:
        """Remove a run; whoever gets it now gets the rest, and it counts until then."""


class RunIndex:
    """A RunMemory in this process. If runs need too much memory, the oldest that have ended are removed first."""

    def __init__(self, max_owner_bytes: int = MAX_OWNER_BYTES, max_bytes: int = MAX_BYTES) -> None:
        self._max_owner_bytes = max_owner_bytes
        self._max_bytes = max_bytes
        self._runs: dict[str, ParkedRun] = {}
        self._ended: dict[str, ParkedRun] = {}  # the oldest first
        self._by_key: dict[tuple[str, str, bytes], ParkedRun] = {}
        self._by_request: dict[tuple[str, bytes], list[ParkedRun]] = {}
        self._removed: dict[str, ParkedRun] = {}  # which clients still get, so that they occupy memory
        self._bytes_by_owner: dict[str, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def size(self) -> int:
        """The bytes that all runs occupy."""
        return self._bytes

    def find(self, id: str) -> ParkedRun | None:
        return self._runs.get(id)

    def find_keyed(self, owner: str, path: str, key: bytes) -> ParkedRun | None:
        return self._by_key.get((owner, path, key))

    def find_lost(self, owner: str, digest: bytes) -> ParkedRun | None:
        """Return the oldest run of the same request whose client left before the end."""
        return next((run for run in self._by_request.get((owner, digest), ()) if run.is_lost), None)

    def add(self, run: ParkedRun) -> None:
        self._runs[run.id] = run
        if run.key is not None:
            self._by_key[run.owner, run.path, run.key] = run
        else:
            self._by_request.setdefault((run.owner, run.digest), []).append(run)
        run.size += EMPTY_RUN_BYTES
        self.record_growth(run, EMPTY_RUN_BYTES)

    def record_end(self, run: ParkedRun) -> None:
        if run.id in self._runs:
            self._ended[run.id] = run

    def record_growth(self, run: ParkedRun, size: int) -> None:
        """Count what was added to a run; forget it if there is no room."""
        if not size or (run.id not in self._runs and run.id not in self._removed):
            return
        self._count(run.owner, size)
        if run.size > MAX_RUN_BYTES or not self._has_room(run.owner):
            run.forget()
            self.remove(run)
            self.record_left(run)

    def remove(self, run: ParkedRun) -> None:
        """Remove a run; whoever gets it now gets the rest, and it counts until then."""
        if self._runs.pop(run.id, None) is None:
            return
        self._ended.pop(run.id, None)
        run.clear_timer()
        self._removed[run.id] = run
        self.record_left(run)
        if run.key is not None:
            self._by_key.pop((run.owner, run.path, run.key), None)
            return
        same = self._by_request[run.owner, run.digest]
        same.remove(run)
        if not same:
            del self._by_request[run.owner, run.digest]

    def record_left(self, run: ParkedRun) -> None:
        """Stop counting a run that was removed, once no client gets it any more."""
        if (not run.clients or not run.is_resumable) and self._removed.pop(run.id, None) is not None:
            self._count(run.owner, -run.size)

    def _has_room(self, owner: str) -> bool:
        """Remove runs that have ended until there is room; return whether there is."""
        if self._fits(owner):
            return True
        for run in list(self._ended.values()):
            if run.clients:  # its memory would not be free
                continue
            if run.owner == owner or self._bytes > self._max_bytes:
                self.remove(run)
                if self._fits(owner):
                    return True
        return False

    def _fits(self, owner: str) -> bool:
        return self._bytes <= self._max_bytes and self._bytes_by_owner[owner] <= self._max_owner_bytes

    def _count(self, owner: str, size: int) -> None:
        self._bytes += size
        total = self._bytes_by_owner.get(owner, 0) + size
        if total:
            self._bytes_by_owner[owner] = total
        else:
            del self._bytes_by_owner[owner]

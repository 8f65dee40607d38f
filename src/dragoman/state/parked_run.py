"""A reply that is kept while it is written, so that its client can come back for the rest."""

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from dragoman.net.headers import Header
from dragoman.net.limits import wake
from dragoman.state.stream_splitter import ArraySplitter, EventSplitter, StreamSplitter
from dragoman.translate.hub.failure import Failure

RUN, SCOPE = b"x-dragoman-run", b"x-dragoman-run-scope"
OF_REPLICA_ONLY = (SCOPE, b"replica")
ID_HEADERS = (b"x-request-id", b"x-dragoman-request-id", b"request-id")
NOT_COUNTED = -1  # the number of blocks that every client gets: [DONE], and the parts of a whole body
BLOCK_BYTES = 160  # what keeping a block costs beside its bytes: two objects, a number and a place in a list
_DONE = (b"data: [DONE]", b"data:[DONE]")
_PING = re.compile(rb"event: ?ping[\r\n]")

OnDisconnect = Literal["cancel", "park", "drain"]


class RunOrigin(Struct, frozen=True):
    """The request of a run, as far as another request is compared with it."""

    owner: str
    path: str
    digest: bytes  # of everything that decides the answer
    key: bytes | None  # its idempotency key
    policy: OnDisconnect


class ParkedRun:
    """One reply: its head, and its events as they are written."""

    def __init__(self, worker: int, origin: RunOrigin) -> None:
        self.id = f"run_{worker:02x}{secrets.token_hex(23)}"
        self.origin = origin
        self.model = ""
        self.wants_array = False  # the request is for a stream that is one JSON array
        self.status = 0
        self.headers: Sequence[Header] = ()
        self.blocks: list[tuple[int, bytes]] = []  # (number of the event, its bytes)
        self.rest = b""  # what follows the last event; known at the end
        self.sign = b""  # the last sign of life
        self.signs = 0  # how many there were
        self.size = 0  # the bytes that it occupies
        self.body_size = 0  # the bytes of its blocks, and of the rest
        self.clients = 1  # how many connections get it now
        self.is_stream = False
        self.is_done = False
        self.is_whole = False  # it ended as its protocol wants it, not in the middle
        self.is_resumable = True  # False: it became too large
        self.is_delivered = False  # a client has got its end
        self.is_taken = False  # by a retry
        self.is_remote = False  # another replica makes it, and here it is read
        self.is_of_replica_only = False  # other replicas do not find it, though they share state
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

    @property
    def has_begun(self) -> bool:
        """Whether a client can know it: its head was made, perhaps by another replica whose copy is on its way."""
        return bool(self.status) or self.is_remote

    @property
    def event_count(self) -> int:
        """How many events it has."""
        return self._number

    @property
    def seconds_left(self) -> float:
        """For how long it is kept, once it has ended."""
        return 0.0 if self.timer is None else max(0.0, self.timer.when() - asyncio.get_running_loop().time())

    @property
    def own_headers(self) -> list[Header]:
        """Return the headers that name the run, and say if only this replica has it."""
        named = (RUN, self.id.encode())
        return [named, OF_REPLICA_ONLY] if self.is_of_replica_only else [named]

    def headers_for(self, request_id: str) -> list[Header]:
        """Return the headers for another request that gets this reply: with its own id."""
        id = request_id.encode()
        own = [(name, id) if name in ID_HEADERS else (name, value) for name, value in self.headers]
        return [*own, *self.own_headers]

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
            self.body_size += len(data)
            self.blocks.append((NOT_COUNTED, data))
            return
        for event in self._splitter.feed(data):
            self._add_event(event)
        self._wake()

    def record_sign(self, sign: bytes, count: int) -> None:
        """Take over the last sign of life, and how many there were, of the replica that makes the reply."""
        self.size += len(sign) - len(self.sign)
        self.sign, self.signs = sign, count
        self._wake()

    def end(self, *, whole: bool) -> None:
        if self.is_resumable and self._splitter is not None:
            self.rest = self._splitter.rest
            self.body_size += len(self.rest)
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
        self.body_size += len(event)
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

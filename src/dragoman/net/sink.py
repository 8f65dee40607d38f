"""Where a reply goes: the interface of all sinks, and those that need no socket."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from dragoman.net.errors import ClientDisconnected, ResponseOrderError
from dragoman.net.headers import Header


class SinkPhase(IntEnum):
    """How much of a reply was sent. From SENT on, no other reply is possible."""

    OPEN = 0  # nothing is decided
    BEGUN = 1  # its head is held until the first write, and a whole reply may still replace it
    SENT = 2  # its head was sent
    ENDED = 3  # it is complete
    ABORTED = 4  # it was cut, so that it cannot pass for a complete one


class ReplyListener(Protocol):
    """Receives a copy of a reply: its head, then the bytes of its body without framing."""

    def on_head(self, status: int, headers: Sequence[Header]) -> None: ...
    def on_body(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...  # called by whoever received the request, once nothing more is sent


class ReplySink(Protocol):
    """Takes one reply. Once its reader has gone, what is written is dropped."""

    listener: ReplyListener | None  # of a capture, or of an inspector that attaches in the middle
    echoed_id: bytes  # the client's own id of its request, which it gets back; empty: it sent none

    @property
    def phase(self) -> SinkPhase: ...

    @property
    def reader_gone(self) -> bool: ...

    @property
    def task(self) -> "asyncio.Task[None] | asyncio.Task[object] | None": ...  # that writes the reply

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send a whole reply; it replaces a head that `begin` made and that was not sent yet."""

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a reply whose body follows; the head is held until the first write."""

    def write(self, data: bytes) -> bool:
        """Write without waiting. After False, call `wait_writable` before the next write."""

    async def send(self, data: bytes) -> None:
        """Write, and wait while the reader is too slow. Empty data sends only a head that is still held."""

    async def wait_writable(self) -> None:
        """Wait until enough of what was written is read; raises ClientDisconnected."""

    def end(self, last: bytes = b"", trailers: Sequence[Header] = ()) -> None:
        """End a reply that was begun, with `last` in the same write."""

    def abort(self) -> None:
        """Cut the reply, so that its reader cannot mistake it for a complete one."""

    def on_reader_gone(self, callback: Callable[[], None] | None) -> None:
        """Call this if the reader leaves, instead of cancelling the task; at once if it has left."""

    def allow_leaving(self) -> None:
        """Let the task be cancelled from now on if the reader leaves. Raises ClientDisconnected if it has left."""


def echo_id(headers: Sequence[Header], id: bytes) -> list[Header]:
    """Return the fields of a reply with the client's own id of its request."""
    return [(name, id if name == b"x-request-id" else value) for name, value in headers]


class DetachedSink(ABC):
    """The base of sinks without a socket: their reader reads everything at once, and leaves only if it is said to.

    A subclass says where head and body go.
    """

    def __init__(self, echoed_id: bytes = b"") -> None:
        self.phase = SinkPhase.OPEN
        self.reader_gone = False
        self.listener: ReplyListener | None = None
        self.echoed_id = echoed_id
        self._on_reader_gone: Callable[[], None] | None = None

    @property
    def task(self) -> "asyncio.Task[object] | None":
        return asyncio.current_task()

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        if self._is_over:
            return
        if self.phase >= SinkPhase.SENT:
            raise ResponseOrderError("a reply was already sent")
        self.phase = SinkPhase.ENDED
        self._take_head(status, self._copy_head(status, headers))
        self._copy_body(body)
        self._take_body(body)

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        if self._is_over:
            return
        if self.phase is not SinkPhase.OPEN:
            raise ResponseOrderError("a reply was already begun")
        self.phase = SinkPhase.BEGUN
        self._take_head(status, self._copy_head(status, headers))

    def write(self, data: bytes) -> bool:
        if self._is_over:
            return False
        self._check_begun()
        self.phase = SinkPhase.SENT
        self._copy_body(data)
        return self._take_body(data)

    async def send(self, data: bytes) -> None:
        if not self.write(data):
            await self.wait_writable()

    async def wait_writable(self) -> None:
        if self._is_over:
            raise ClientDisconnected

    def end(self, last: bytes = b"", trailers: Sequence[Header] = ()) -> None:
        if self._is_over:
            return
        self._check_begun()
        self.phase = SinkPhase.ENDED
        self._copy_body(last)
        self._take_body(last)

    def abort(self) -> None:
        if not self._is_over and self.phase is not SinkPhase.ENDED:
            self.phase = SinkPhase.ABORTED

    def on_reader_gone(self, callback: Callable[[], None] | None) -> None:
        self._on_reader_gone = callback
        if self.reader_gone and callback is not None:
            callback()

    def allow_leaving(self) -> None:
        if self.reader_gone and self._on_reader_gone is None:
            raise ClientDisconnected

    def lose_reader(self, cancel: Callable[[], object]) -> None:
        """Note that the reply has lost its reader; call `cancel` unless something else is to happen then."""
        self.reader_gone = True
        (self._on_reader_gone or cancel)()

    @property
    def _is_over(self) -> bool:
        """Whether what is written is dropped."""
        return self.reader_gone or self.phase is SinkPhase.ABORTED

    def _check_begun(self) -> None:
        if self.phase is not SinkPhase.BEGUN and self.phase is not SinkPhase.SENT:
            raise ResponseOrderError("a write outside a streamed reply")

    def _copy_head(self, status: int, headers: Sequence[Header]) -> Sequence[Header]:
        """Return the fields as the reader gets them."""
        if self.echoed_id:
            headers = echo_id(headers, self.echoed_id)
        if self.listener is not None:
            self.listener.on_head(status, headers)
        return headers

    def _copy_body(self, data: bytes) -> None:
        if self.listener is not None:
            self.listener.on_body(data)

    @abstractmethod
    def _take_head(self, status: int, headers: Sequence[Header]) -> None: ...

    @abstractmethod
    def _take_body(self, data: bytes) -> bool:
        """Take bytes of the body; return False if the next ones must wait."""


class CollectorSink(DetachedSink):
    """Keeps a whole reply in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.status = 0
        self.headers: Sequence[Header] = ()
        self._pieces: list[bytes] = []

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    def _take_head(self, status: int, headers: Sequence[Header]) -> None:
        self.status, self.headers = status, headers
        self._pieces.clear()  # a whole reply may replace a head, never a body

    def _take_body(self, data: bytes) -> bool:
        self._pieces.append(data)
        return True

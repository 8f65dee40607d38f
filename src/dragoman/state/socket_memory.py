"""What a WebSocket remembers of its lanes, and what its requests hold, counted in the budget of all requests."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from dragoman.net.errors import BufferBudgetExceeded
from dragoman.state.context import ContextItem, Memory, sum_rows


class ByteCounter(Protocol):
    """Counts the bytes that are held for a connection."""

    def hold(self, size: int) -> None:
        """Count more bytes; raises BufferBudgetExceeded, and counts none."""

    def release(self, size: int) -> None: ...


class Remembered(Struct):
    """A response that a connection remembers: its context and its output."""

    id: str
    items: tuple[ContextItem, ...]
    size: int  # bytes that are counted for it
    sent: int  # those of them that its items take as the client sent them, over the whole chain
    users: int = 1  # the lane whose newest response it is, and the requests that continue it


class HeldRequest(Struct):
    """A request under way: what is counted for it until it ends, or until its response is remembered."""

    size: int  # bytes of its message
    stored: int = 0  # bytes that were read from the store for it
    parent: Remembered | None = None  # the response that it continues


class SocketMemory:
    """The newest response of each lane of a connection."""

    def __init__(self, counter: ByteCounter) -> None:
        self._counter = counter
        self._newest: dict[str, Remembered] = {}  # by lane

    @property
    def responses(self) -> Memory:
        return {one.id: one.items for one in self._newest.values()}

    def has(self, id: str) -> bool:
        return any(one.id == id for one in self._newest.values())

    def use_parent(self, request: HeldRequest, id: object) -> None:
        """Count the response with this id, if there is one, for as long as the request uses it."""
        request.parent = next((one for one in self._newest.values() if one.id == id), None)
        if request.parent is not None:
            request.parent.users += 1

    def hold_stored(self, request: HeldRequest, items: Iterable[ContextItem]) -> None:
        """Count what was read from the store for a request; raises BufferBudgetExceeded."""
        stored = sum_rows(items)
        self._counter.hold(stored)
        request.stored = stored

    def remember(self, lane: str, request: HeldRequest, id: str, items: tuple[ContextItem, ...]) -> None:
        """Remember the response to a request as the newest one of its lane, if there is room for it.

        What it consists of was counted for the request, and for the response that it continues, so far.
        """
        sent = request.size + (0 if request.parent is None else request.parent.sent)
        size = sent + sum_rows(items)
        self.end(request)
        self.forget(lane)
        try:
            self._counter.hold(size)
        except BufferBudgetExceeded:
            return
        self._newest[lane] = Remembered(id, items, size, sent)

    def end(self, request: HeldRequest) -> None:
        """Stop counting what a request holds."""
        parent, request.parent = request.parent, None
        self._counter.release(request.size + request.stored)
        request.size = request.stored = 0
        if parent is not None:
            self._release(parent)

    def forget(self, lane: str, id: str | None = None) -> None:
        """Forget the newest response of a lane, or only if it is the one with this id."""
        newest = self._newest.get(lane)
        if newest is not None and id in (None, newest.id):
            del self._newest[lane]
            self._release(newest)

    def clear(self) -> None:
        for lane in tuple(self._newest):
            self.forget(lane)

    def _release(self, remembered: Remembered) -> None:
        remembered.users -= 1
        if not remembered.users:
            self._counter.release(remembered.size)

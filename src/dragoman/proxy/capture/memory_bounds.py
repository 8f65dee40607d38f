"""Bounds on the memory of recordings."""

import threading
from collections import deque
from typing import Generic, TypeVar

MAX_BYTES = 8 * 1024 * 1024  # of one recording; beyond it, only the tail of each stream is kept
TAIL_BYTES = 64 * 1024  # enough to see how a stream ended

T = TypeVar("T")


class MemoryBudget:
    """Bytes that all recordings share, both those in progress and those that wait to be written."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def reserve(self, size: int) -> bool:
        """Take this number of bytes; return False if fewer are left."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def release(self, size: int) -> None:
        with self._lock:
            self._left += size

    @property
    def left(self) -> int:
        return self._left


class HeadAndTail(Generic[T]):
    """The parts of a stream in order: as many from its beginning as fit, then only the last ones.

    `gap` stands for the parts that were dropped between them.
    """

    __slots__ = ("_dropped", "_gap", "_head", "_tail", "_tail_left")

    def __init__(self, gap: T | None = None) -> None:
        self._gap = gap
        self._head: list[T] = []
        self._tail: deque[tuple[T, int]] | None = None
        self._tail_left = TAIL_BYTES
        self._dropped = 0  # parts that were in the tail

    @property
    def is_complete(self) -> bool:
        """Whether every part so far was added to the head."""
        return self._tail is None

    def add(self, part: T) -> None:
        """Add a part to the head."""
        self._head.append(part)

    def add_to_tail(self, part: T, size: int) -> None:
        """Add a part to the tail, and drop the oldest ones there beyond TAIL_BYTES."""
        if self._tail is None:
            self._tail = deque()
        self._tail.append((part, size))
        self._tail_left -= size
        while self._tail_left < 0 and len(self._tail) > 1:
            self._tail_left += self._tail.popleft()[1]
            self._dropped += 1

    def parts(self) -> tuple[T, ...]:
        if self._tail is None:
            return tuple(self._head)
        gap = () if self._gap is None else (self._gap,)
        return (*self._head, *gap, *(part for part, _ in self._tail))

    def read_from(self, position: int) -> tuple[list[T], int]:
        """Return the parts from a position on that are still there, and the position after the last one.

        Where parts in between were dropped, `gap` stands for them.
        """
        tail = self._tail or ()
        first_in_tail = len(self._head) + self._dropped
        end = first_in_tail + len(tail)
        parts = self._head[position:]
        if tail and position < first_in_tail and self._dropped and self._gap is not None:
            parts.append(self._gap)
        skipped = max(0, position - first_in_tail)
        return [*parts, *(part for part, _ in list(tail)[skipped:])], end


class RecordingMemory:
    """The bytes that one recording holds of the budget, and the parts of it that are not complete."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.size = 0
        self.truncated: dict[str, None] = {}  # names of parts, in order

    def reserve(self, size: int, part: str) -> bool:
        """Return whether there is memory for these bytes; if not, mark this part as truncated."""
        if self.size + size > MAX_BYTES or not self._budget.reserve(size):
            self.truncated[part] = None
            return False
        self.size += size
        return True

    def reserve_tail(self, stream: HeadAndTail[T]) -> bool:
        """Return whether a stream has a tail; its memory is reserved once, beyond MAX_BYTES."""
        if stream.is_complete:
            if not self._budget.reserve(TAIL_BYTES):
                return False
            self.size += TAIL_BYTES
        return True

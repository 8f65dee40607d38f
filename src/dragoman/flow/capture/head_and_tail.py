"""Pieces of a stream come in, more than there may be room for; its beginning and its end go out."""

from collections import deque
from typing import Generic, TypeVar

TAIL_BYTES = 64 * 1024  # enough to see how it ended

T = TypeVar("T")


class Kept(Generic[T]):
    """What came, in order: its beginning as far as there is room, and then always the last of it."""

    __slots__ = ("_first", "_gap", "_last", "_left")

    def __init__(self, gap: T | None = None) -> None:
        self._first: list[T] = []
        self._gap = gap
        self._last: deque[tuple[T, int]] | None = None
        self._left = TAIL_BYTES

    @property
    def is_whole(self) -> bool:
        return self._last is None

    def add(self, piece: T) -> None:
        self._first.append(piece)

    def add_last(self, piece: T, size: int) -> None:
        """There is no room for more than a tail any longer."""
        if self._last is None:
            self._last = deque()
        self._last.append((piece, size))
        self._left -= size
        while self._left < 0 and len(self._last) > 1:
            self._left += self._last.popleft()[1]

    def all(self) -> tuple[T, ...]:
        if self._last is None:
            return tuple(self._first)
        gap = () if self._gap is None else (self._gap,)
        return (*self._first, *gap, *(piece for piece, _ in self._last))

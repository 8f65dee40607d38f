"""Pieces of a body come in one by one; they go into a sink that says after each whether it wants more, or together."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from dragoman.net.faults import TooLarge

Sink = Callable[[bytes], float | None]  # a piece -> seconds to wait for the next; None: no more for now


class Pieces(Protocol):
    async def chunk(self, timeout_s: float) -> bytes: ...
    def close(self) -> None: ...


async def pour_pieces(chunk: Callable[[float], Awaitable[bytes]], sink: Sink, timeout_s: float) -> bool:
    """True at the clean end of the body, false where the sink wanted no more for now."""
    while piece := await chunk(timeout_s):
        wanted = sink(piece)
        if wanted is None:
            return False
        timeout_s = wanted
    return True


async def read_pieces(body: Pieces, limit: int, timeout_s: float, where: str) -> bytes:
    """The whole body; TooLarge beyond `limit`; `timeout_s` bounds every silence, not the whole."""
    pieces = []
    size = 0
    while piece := await body.chunk(timeout_s):
        size += len(piece)
        if size > limit:
            body.close()
            raise TooLarge(f"{where} answered with more than {limit} bytes")
        pieces.append(piece)
    return b"".join(pieces)

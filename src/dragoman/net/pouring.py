"""Pieces of a body go from whoever reads them straight into a sink, which says after each whether it wants more."""

from collections.abc import Awaitable, Callable

Sink = Callable[[bytes], float | None]  # a piece -> seconds to wait for the next; None: no more for now


async def pour_pieces(chunk: Callable[[float], Awaitable[bytes]], sink: Sink, timeout_s: float) -> bool:
    """True at the clean end of the body, false where the sink wanted no more for now."""
    while piece := await chunk(timeout_s):
        wanted = sink(piece)
        if wanted is None:
            return False
        timeout_s = wanted
    return True

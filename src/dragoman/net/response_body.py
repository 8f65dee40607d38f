"""Read the body of a response: chunk by chunk into a sink, or as a whole."""

import asyncio
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import Protocol

from dragoman.net.errors import SizeLimitExceeded, UpstreamTimeout

BodySink = Callable[[bytes], float | None]  # chunk -> seconds to wait for the next; None pauses the stream


TURN_BYTES = 1 << 20


class ChunkSource(Protocol):
    async def chunk(self, timeout_s: float) -> bytes: ...
    def close(self) -> None: ...


async def stream_chunks(chunk: Callable[[float], Awaitable[bytes]], sink: BodySink, timeout_s: float) -> bool:
    """Pass chunks to the sink. Return True at the end of the body, False if the sink paused it."""
    while piece := await chunk(timeout_s):
        next_timeout_s = sink(piece)
        if next_timeout_s is None:
            return False
        timeout_s = next_timeout_s
    return True


async def read_chunks(
    body: ChunkSource,
    limit: int,
    silence_s: float,
    where: str,
    total_s: float | None = None,
    hold: Callable[[int], None] | None = None,
) -> bytes:
    """Return the whole body; raises SizeLimitExceeded, or UpstreamTimeout after `silence_s` without data.

    `hold` is called with the size of each piece, and may raise. Without `total_s`, no more than `silence_s` in all.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + (silence_s if total_s is None else total_s)
    first, rest = b"", BytesIO()
    size = paused_at = 0
    while piece := await body.chunk(max(0.001, min(silence_s, deadline - clock()))):
        size += len(piece)
        if clock() > deadline:
            body.close()
            raise UpstreamTimeout("idle", f"{where} did not end its answer in time")
        if hold is not None:
            hold(len(piece))
        if size > limit:
            body.close()
            raise SizeLimitExceeded(f"{where} answered with more than {limit} bytes")
        if size == len(piece):
            first = piece
            continue
        rest.write(piece if rest.tell() else first + piece)
        if size - paused_at > TURN_BYTES:  # a compressed body may have arrived whole: let other tasks run
            paused_at = size
            await asyncio.sleep(0)
    return rest.getvalue() or first

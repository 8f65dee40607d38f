"""An upstream response whose bytes are corrected while they are read."""

import asyncio

from dragoman.hub.ports import Stage
from dragoman.net.bodies import BodySink, stream_chunks
from dragoman.net.client import IncomingResponse
from dragoman.net.headers import Headers


class FixedResponse:
    """An IncomingResponse whose bytes pass through a stage."""

    def __init__(self, response: IncomingResponse, stage: Stage[bytes, bytes]) -> None:
        self._response = response
        self._stage = stage
        self._over = False

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Headers:
        return self._response.headers

    async def chunk(self, timeout_s: float) -> bytes:
        """Return the next bytes, b"" only at the end; wait while the stage holds bytes back."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        while not self._over:
            chunk = await self._response.chunk(max(0.001, deadline - clock()))
            self._over = not chunk
            out = b"".join(self._stage.feed(chunk) if chunk else self._stage.finish())
            if out:
                return out
        return b""

    def take_whole(self) -> bytes | None:
        return None  # read by chunks

    async def stream_to(self, sink: BodySink, timeout_s: float) -> bool:
        return await stream_chunks(self.chunk, sink, timeout_s)

    async def read(self, limit: int, timeout_s: float) -> bytes:
        body = await self._response.read(limit, timeout_s)
        return b"".join([*self._stage.feed(body), *self._stage.finish()])

    def close(self) -> None:
        self._response.close()


def is_event_stream(response: IncomingResponse) -> bool:
    kind = response.headers.get(b"content-type") or b""
    return response.status == 200 and kind.partition(b";")[0].strip().lower() == b"text/event-stream"

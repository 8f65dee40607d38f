"""The sink of a reply that is sent as messages of a WebSocket's lane."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from dragoman.net.headers import Header
from dragoman.net.sink import DetachedSink
from dragoman.net.websocket import WebSocket
from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.request import Json


class LaneSink(DetachedSink):
    """Sends the events of a stream as messages of a lane, held back while the socket is; keeps the body of an error.

    A stream that fails has an `error` event and then `response.failed`. Over a WebSocket a message of the type `error`
    refuses a request, so that the event is sent only if nothing follows it.
    """

    def __init__(self, socket: WebSocket, send: Callable[[bytes], None], echoed_id: bytes = b"") -> None:
        super().__init__(echoed_id)
        self._socket = socket
        self._send = send
        self._framer = SseFramer()
        self._error: list[bytes] = []
        self._last_error: bytes | None = None  # an `error` event that may be the last one
        self.status = 200
        self.headers: Sequence[Header] = ()

    @property
    def error(self) -> bytes:
        return b"".join(self._error)

    async def wait_writable(self) -> None:
        await super().wait_writable()
        await self._socket.wait_writable()

    def flush(self) -> None:
        """Send what was held back, once nothing follows."""
        last, self._last_error = self._last_error, None
        if last is not None:
            self._send(last)

    def _take_head(self, status: int, headers: Sequence[Header]) -> None:
        self.status, self.headers = status, headers

    def _take_body(self, data: bytes) -> bool:
        if self.status != 200:
            self._error.append(data)
            return True
        for frame in self._framer.feed(data):
            if type(frame) is Frame and frame.data != b"[DONE]":
                held, self._last_error = self._last_error, None
                if frame.event == "error":
                    self._last_error = frame.data
                else:
                    self._send(frame.data if held is None else _take_number(frame.data, held))
        return not self._socket.blocked


class _Numbered(Struct):
    sequence_number: int = 0


def _take_number(event: bytes, dropped: bytes) -> bytes:
    """Return an event with the sequence number of one that is not sent before it, so that none is missing."""
    number = msgspec.json.decode(dropped, type=_Numbered).sequence_number
    return msgspec.json.encode(msgspec.json.decode(event, type=dict[str, Json]) | {"sequence_number": number})

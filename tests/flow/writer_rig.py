"""A writer of a stream to a client in memory, and scenes that are played on an event loop."""

from collections.abc import Callable, Coroutine

from dragoman.flow.prepare import Prepared
from dragoman.flow.response_writer import StreamWriter, WholeWriter
from dragoman.hub.events import Event
from dragoman.hub.loss import Ledger
from dragoman.observers.reply_monitor import ReplyMonitor
from flow.in_memory import (
    CHAT_STREAM,
    MemoryWire,
    make_call,
    make_encoding,
    make_exchange,
    make_provider,
    prepare_for,
    run,
)

NEVER_S, SOON_S = 3600.0, 0.02


class Rig:
    """A writer of a stream to a client in memory."""

    def __init__(self, protocol: str = "chat", body: bytes = CHAT_STREAM, keep_alive_s: float = NEVER_S) -> None:
        self.wire = MemoryWire()
        exchange = make_exchange(self.wire)
        self.call = make_call(protocol, body, exchange=exchange)
        self.writer = StreamWriter(exchange, self.call, make_encoding(self.call, joins=True), keep_alive_s)

    async def begin_passthrough(self, name: str = "up") -> Prepared:
        """Begin a turn whose bytes pass unchanged."""
        return await self._begin(make_provider(name, (self.call.protocol.name,)).name, self.call.protocol.name)

    async def begin_translation(self, name: str = "up") -> Prepared:
        """Begin a turn that is translated."""
        other = "messages" if self.call.protocol.name == "chat" else "chat"
        prepared = await self._begin(name, other)
        self.writer.encoding.begin_turn(Ledger(), None, ReplyMonitor(lambda: 0.0))
        return prepared

    async def _begin(self, name: str, protocol: str) -> Prepared:
        prepared = await prepare_for(self.call, make_provider(name, (protocol,)))
        self.writer.begin_turn(prepared)
        return prepared

    def encode(self, *events: Event) -> bytes:
        return encode_events(self.writer, *events)


def encode_events(writer: StreamWriter | WholeWriter, *events: Event) -> bytes:
    given = list(events)
    for stage in writer.encoding.stages:
        given = [out for event in given for out in stage.feed(event)]
    return b"".join(piece for event in given for piece in writer.encoding.encode(event))


def play(scene: Callable[[], Coroutine[object, object, None]]) -> None:
    run(scene())

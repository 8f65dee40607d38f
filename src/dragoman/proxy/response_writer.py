"""Write the client's response over all turns of a call: the head, keep-alives and the reply."""

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import ClassVar

from msgspec import Struct

from dragoman.net.headers import JSON, Header, Headers
from dragoman.net.sink import ReplySink
from dragoman.proxy.call import Call
from dragoman.proxy.client_encoding import NOTHING, ClientEncoding, EventCollector, LastWrites, ReplyShape
from dragoman.proxy.decoding import is_named_stream
from dragoman.proxy.held_events import HeldEvents
from dragoman.proxy.prepared import Prepared
from dragoman.proxy.response_headers import format_rates, headers_to_forward, id_headers
from dragoman.proxy.why import Why
from dragoman.state.stored_call import StoredCall
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.failure import Failure, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.stages.split_citations import split_citations
from dragoman.upstreams.routing import Route

UNBUFFERED: tuple[Header, ...] = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
APART_S = 0.05  # between two writes that a client should read one by one

MakeEncoding = Callable[[], ClientEncoding]


class StreamWriter:
    """Writes a stream of events.

    While no turn has given anything for `keep_alive_s`, the head is sent, and then a keep-alive as often. Nothing of
    ours is put between the bytes of a reply that passes through: from its first byte on, the upstream's own keep-alives
    are passed on instead, and everything else is held until the first token.
    """

    def __init__(self, sink: ReplySink, call: Call, make_encoding: MakeEncoding, keep_alive_s: float) -> None:
        self._sink = sink
        self._call = call
        self._make_encoding = make_encoding
        self._encoding: ClientEncoding | None = None
        self._interval_s = keep_alive_s
        self._prepared: Prepared | None = None  # of the turn that runs now
        self._upstream_headers: Headers | None = None  # of a reply that passes through
        self._passing: HeldEvents | None = None  # the first bytes of a reply that passes through
        self._routes: list[Route] = []  # the one that the head names, and those that have answered
        self._apart = b""  # written last, by itself
        self._last = b""  # kept for the next write, so that the end of a stream is one write
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + keep_alive_s
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._due_at, self._send_keep_alive)
        self._observe: Callable[[bytes], None] | None = None  # of a reply that its upstream keeps
        self._is_translated = False  # the encoding has written a part of the reply
        self.committed = False

    @property
    def encoding(self) -> ClientEncoding:
        """Made when it is first used: bytes that pass need none."""
        if self._encoding is None:
            self._encoding = self._make_encoding()
        return self._encoding

    @property
    def open_stream(self) -> "StreamWriter | None":
        """This writer, once its head is sent: an error can only be an event."""
        return self if self._routes else None

    @property
    def keep_alive(self) -> bytes:
        """What to send while a translated reply pauses."""
        client = self._call.client
        if client.encoder_keep_alive is None:
            return client.keep_alive
        return client.encoder_keep_alive(self.encoding.encoder)

    def begin_turn(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._upstream_headers = None
        self._passing = None

    def begin_answer(self, headers: Headers | None) -> None:
        """Note that the upstream of this turn answers; `headers` are sent with the head if its reply passes through."""
        self._upstream_headers = headers

    def pass_keep_alives(self, held: HeldEvents) -> bool:
        """Send what is due of the keep-alives among held bytes; after False, call `wait_writable` before the next."""
        self._passing = held
        return self._loop.time() < self._due_at or self._pass_keep_alives(held)

    def _pass_keep_alives(self, held: HeldEvents) -> bool:
        """Send the upstream's own keep-alives that are held; return False if the client reads too slowly."""
        keep_alives = held.take_keep_alives()
        if not keep_alives:
            return True
        assert self._prepared is not None
        self._send_head(self._prepared, self._upstream_headers, self._prepared.why)
        return self._sink.write(keep_alives)

    def begin_reply(self, prepared: Prepared, headers: Headers | None, why: Why) -> None:
        """Begin a reply with the head, unless that is sent; `headers`: the upstream's, of a reply that passes."""
        self._stop_timer()
        self._send_head(prepared, headers, why)
        if prepared.route != self._routes[-1]:  # else it is another credential of the same target
            self._routes.append(prepared.route)
        self.committed = True
        self._is_translated = headers is None

    async def follow_keeper(self, state: StoredCall) -> None:
        """Observe the bytes of a reply to a passed request, where its upstream keeps it."""
        if state.keeps:
            await state.commit()
            self._observe = partial(state.observe, whole=False)

    @property
    def write(self) -> Callable[[bytes], bool]:
        """What writes the next bytes; after False, call `wait_writable` before the next write."""
        return self._sink.write if self._observe is None and not self._last else self._write_pending

    def _write_pending(self, data: bytes) -> bool:
        return self._sink.write(self._take_pending(data))

    async def wait_writable(self) -> None:
        await self._sink.wait_writable()

    async def send(self, data: bytes) -> None:
        await self._sink.send(self._take_pending(data))

    def hold_for_end(self, data: bytes) -> None:
        """Send this with the next bytes, or with the end."""
        self._last += data

    def hold_apart(self, data: bytes) -> None:
        """Send this last, in a write of its own."""
        self._apart = data

    def resume_keep_alives(self) -> None:
        """Send keep-alives again, for another turn of a reply of which something was sent."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._send_keep_alive)

    async def fail(self, failure: Failure) -> None:
        """End the stream with the protocol's error event."""
        await self._end(self._error_event(failure))

    async def finish_failed(self, failure: Failure) -> None:
        """End the stream with the protocol's error event, once it is stored that the reply failed."""
        self._stop_timer()
        await self.finish(self._error_event(failure))

    async def finish(self, end: LastWrites) -> None:
        """End the stream, once it is stored."""
        last, state = self._take_pending(end.joined), self._call.state
        if state is not None and not await state.commit():
            last = state.mark_unstored(last)
        await self._end(LastWrites(last, end.apart))

    async def _end(self, end: LastWrites) -> None:
        last, apart = self._take_pending(end.joined), end.apart or self._apart
        if apart:
            await self._sink.send(last)
            await asyncio.sleep(APART_S)
            last = apart
        self._sink.end(last, self._trailers())

    def close(self) -> None:
        self._stop_timer()

    def _take_pending(self, data: bytes) -> bytes:
        if self._last:
            data, self._last = self._last + data, b""
        if self._observe is not None:
            self._observe(data)
        return data

    def _send_head(self, prepared: Prepared, upstream_headers: Headers | None, why: Why) -> None:
        if self._routes:
            return
        self._routes.append(prepared.route)
        fields: list[Header] = [(b"content-type", self._call.stream_type), *UNBUFFERED]
        if upstream_headers is not None:
            fields = _stream_fields(upstream_headers, prepared, fields)
        self._sink.begin(200, [*fields, *own_headers(self._call, prepared, why, fields, whole=False)])

    def _error_event(self, failure: Failure) -> LastWrites:
        if self.committed:
            return self.encoding.fail(failure) if self._is_translated else NOTHING  # a passed reply has written it
        try:
            return self.encoding.fail_alone(failure)
        except RequestError:  # the request cannot be parsed; an upstream of its own protocol would have judged it
            client, kind = self._call.client, self._call.stream_type
            event = client.render_stream_error(failure, None, 0, kind)
            return LastWrites(event, client.repeat_stream_error(failure, kind))

    def _trailers(self) -> list[Header]:
        """Return the routes that answered, if there were more than the one in the head."""
        if len(self._routes) == 1:
            return []
        return [(b"x-dragoman-route", ", ".join(map(str, self._routes)).encode("ascii", "replace"))]

    def _send_keep_alive(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._send_keep_alive)
        if self._passing is not None:
            self._pass_keep_alives(self._passing)
            return
        keep_alive = self.keep_alive if self.committed else self._call.client.keep_alive
        if keep_alive and self._prepared is not None:
            self._send_head(self._prepared, self._upstream_headers, self._prepared.why)
            self._sink.write(keep_alive)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


EncodeWhole = Callable[[Sequence[Event], Ledger], bytes]


class DocumentWriter(Struct, eq=False):
    """Writes a reply as one body, once it is complete: its failures are HTTP errors."""

    committed: ClassVar[bool] = False
    open_stream: ClassVar[StreamWriter | None] = None

    _sink: ReplySink
    _call: Call
    _on_guard_trip: Callable[[str], None]
    _encode: EncodeWhole
    _collector: EventCollector | None = None
    _encoding: ClientEncoding | None = None

    @property
    def encoding(self) -> ClientEncoding:
        """Made when it is first used: a body that passes unchanged needs none."""
        if self._encoding is None:
            client = self._call.client
            shape = ReplyShape(cites_apart=client.cites_apart, any_arguments=client.arguments_are_text)
            self._encoding = ClientEncoding(self._make_collector, self._on_guard_trip, shape)
        return self._encoding

    async def send_unchanged(self, prepared: Prepared, headers: Headers, body: bytes, why: Why) -> None:
        """Send the upstream's own body."""
        state = self._call.state
        if state is not None:
            state.observe(body, whole=True)
            await state.commit()
        fields = headers_to_forward(headers, prepared.secrets, shows_account=prepared.owner)
        fields += own_headers(self._call, prepared, why, fields, whole=True)
        self._sink.respond(200, fields, body)

    async def send_folded(self, prepared: Prepared, ledger: Ledger, why: Why) -> None:
        """Send the body that the collected events make; what it loses is noted in the ledger."""
        self.encoding.finish()
        assert self._collector is not None
        events: Sequence[Event] = self._collector.events
        if self._call.client.cites_apart:
            events = split_citations(events)
        body, state = self._encode(events, ledger), self._call.state
        if state is not None and not await state.commit():
            body = state.mark_unstored(body)
        fields = [JSON, *own_headers(self._call, prepared, why, [JSON], whole=True)]
        self._sink.respond(200, fields, body)

    def _make_collector(self, ledger: Ledger) -> EventCollector:
        """Return the collector of a turn; that of the turn before it is forgotten."""
        self._collector = EventCollector()
        return self._collector

    def close(self) -> None:
        """Release the events that were collected, and the encoding, which refers back to this."""
        self._collector = self._encoding = None


def own_headers(call: Call, prepared: Prepared, why: Why, given: list[Header], *, whole: bool) -> list[Header]:
    """Return the headers that name the route, count the losses and explain the choice of the reply."""
    head: list[Header] = [
        *id_headers(call.client, call.id, given),
        _route_header(prepared.route),
    ]
    head += prepared.count_losses(explain=call.explain, whole=whole)
    if call.lease is not None:
        head += format_rates(call.client, call.lease.rates, given)
    if call.explain:
        head.append((b"x-dragoman-why", str(why).encode("ascii", "replace")))
    return head


@lru_cache(maxsize=256)
def _route_header(route: Route) -> Header:
    return (b"x-dragoman-route", str(route).encode("ascii", "replace"))


def _stream_fields(headers: Headers, prepared: Prepared, own: list[Header]) -> list[Header]:
    fields = headers_to_forward(headers, prepared.secrets, shows_account=prepared.owner)
    if not is_named_stream(headers):  # its content type is that of a document
        fields = [field for field in fields if field[0] != b"content-type"]
    given = {name for name, _ in fields}
    return [*fields, *(field for field in own if field[0] not in given)]


ResponseWriter = StreamWriter | DocumentWriter

"""Write the client's response over all turns of a call: the head, keep-alives and the reply."""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from dragoman.flow.call import Call
from dragoman.flow.client_encoding import ClientEncoding, LastCollector, LastWrites
from dragoman.flow.decoding import is_named_stream
from dragoman.flow.pipes import Pipe, TranslationPipe
from dragoman.flow.ports import LostCallMemory
from dragoman.flow.prepare import Passthrough, Prepared, Translated
from dragoman.flow.response_headers import drop_account_headers, format_loss_headers, headers_to_forward, id_headers
from dragoman.framing.known_secrets import redact_known_in_fields
from dragoman.hub.events import Event
from dragoman.hub.failure import Failure, RequestError
from dragoman.hub.loss import Ledger
from dragoman.net.headers import JSON, Header, Headers
from dragoman.net.sink import ReplySink
from dragoman.routing import Route
from dragoman.stages.split_citations import split_citations

UNBUFFERED: tuple[Header, ...] = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
APART_S = 0.05  # between two writes that a client should read one by one
BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
LONGEST_BLANK = 4


class StreamWriter:
    """Writes a stream of events.

    While no turn has given anything for `keep_alive_s`, the head is sent, and then a keep-alive as often. Nothing of
    ours is put between the bytes of a reply that passes through: from its first byte on, the upstream's own keep-alives
    are passed on instead, and everything else is held until the first token.
    """

    streams = True

    def __init__(self, exchange: ReplySink, call: Call, encoding: ClientEncoding, keep_alive_s: float) -> None:
        self._exchange = exchange
        self._call = call
        self.encoding = encoding
        self._interval_s = keep_alive_s
        self._prepared: Prepared | None = None
        self._upstream_headers: Headers | None = None  # of a reply that passes through
        self._held = HeldEvents(call.client.keep_alive)  # of the turn that runs now
        self._passing = False  # its reply passes through, and the first bytes of it have come
        self._routes: list[Route] = []  # the one that the head names, and those that have answered
        self._apart = b""  # written last, by itself
        self._last = b""  # kept for the next write, so that the end of a stream is one write
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + keep_alive_s
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._due_at, self._send_keep_alive)
        self._observe: Callable[[bytes], None] | None = None  # of a reply that its upstream keeps
        self.committed = False

    @property
    def head_sent(self) -> bool:
        """Whether an error can only be an event."""
        return bool(self._routes)

    @property
    def keep_alive(self) -> bytes:
        """What to send while a committed reply pauses; nothing where bytes pass through."""
        if not self.encoding.in_use:
            return b""
        client = self._call.client
        if client.encoder_keep_alive is None:
            return client.keep_alive
        return client.encoder_keep_alive(self.encoding.encoder)

    def begin_turn(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._upstream_headers = None
        self._passing = False
        self._held.clear()
        self.encoding.in_use = self.committed  # a reply that is continued is encoded already

    def begin_answer(self, headers: Headers) -> None:
        """Note that the upstream of this turn answers with a stream; its headers are sent if it passes through."""
        if type(self._prepared) is Passthrough:
            self._upstream_headers = headers

    @property
    def held_bytes(self) -> int:
        """How much is held of a reply that passes through."""
        return len(self._held) if self._passing else 0

    def hold(self, data: bytes) -> None:
        """Keep bytes until the first token."""
        self._held.add(data)
        self._passing = type(self._prepared) is Passthrough

    def pass_keep_alives(self) -> bool:
        """Send what is due of the upstream's own keep-alives; after False, call `wait_writable` before the next."""
        return not self._passing or self._loop.time() < self._due_at or self._pass_keep_alives()

    def take_held(self) -> bytes:
        return self._held.take()

    def _pass_keep_alives(self) -> bool:
        """Send the upstream's own keep-alives that are held; return False if the client reads too slowly."""
        keep_alives = self._held.take_keep_alives()
        if not keep_alives:
            return True
        assert self._prepared is not None
        self._send_head(self._prepared, self._upstream_headers)
        return self._exchange.write(keep_alives)

    async def commit(self, prepared: Prepared, headers: Headers, held: bytes) -> None:
        """Send the head, unless it is sent, and the first bytes of the reply."""
        self._stop_timer()
        self._send_head(prepared, None if self.encoding.in_use else headers)
        if prepared.route != self._routes[-1]:  # else it is another credential of the same target
            self._routes.append(prepared.route)
        self.committed = True
        state = self._call.state
        if state is not None and state.keeps and type(prepared) is Passthrough:
            await state.commit()
            self._observe = partial(state.observe, whole=False)
        await self.send(held)

    @property
    def write(self) -> Callable[[bytes], bool]:
        """What writes the next bytes; after False, call `wait_writable` before the next write."""
        return self._exchange.write if self._observe is None and not self._last else self._write_pending

    def _write_pending(self, data: bytes) -> bool:
        return self._exchange.write(self._take_pending(data))

    async def wait_writable(self) -> None:
        await self._exchange.wait_writable()

    async def send(self, data: bytes) -> None:
        await self._exchange.send(self._take_pending(data))

    def keep_for_end(self, data: bytes) -> None:
        """Send this with the next bytes, or with the end."""
        self._last += data

    def resume_keep_alives(self) -> None:
        """Send keep-alives again, for another turn of a reply of which something was sent."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._send_keep_alive)

    async def fail(self, failure: Failure) -> None:
        """End the stream with the protocol's error event."""
        await self._end(self._error_event(failure))

    async def finish_failed(self, failure: Failure) -> None:
        """End the stream with the protocol's error event, once it is stored that the reply failed."""
        await self._finish(self._error_event(failure))

    async def finish(self) -> None:
        await self._finish(self.encoding.finish() if self.encoding.in_use else LastWrites())

    def keep_apart(self, data: bytes) -> None:
        """Send this last, in a write of its own."""
        self._apart = data

    async def _finish(self, end: LastWrites) -> None:
        last, state = self._take_pending(end.joined), self._call.state
        if state is not None and not await state.commit():
            last = state.mark_unstored(last)
        await self._end(LastWrites(last, end.apart))

    async def _end(self, end: LastWrites) -> None:
        last, apart = self._take_pending(end.joined), end.apart or self._apart
        if apart:
            await self._exchange.send(last)
            await asyncio.sleep(APART_S)
            last = apart
        self._exchange.end(last, self._trailers())

    def close(self) -> None:
        self._stop_timer()

    def _take_pending(self, data: bytes) -> bytes:
        if self._last:
            data, self._last = self._last + data, b""
        if self._observe is not None:
            self._observe(data)
        return data

    def _send_head(self, prepared: Prepared, upstream_headers: Headers | None) -> None:
        if self.head_sent:
            return
        self._routes.append(prepared.route)
        fields: list[Header] = [(b"content-type", self._call.stream_type), *UNBUFFERED]
        if upstream_headers is not None:
            fields = _stream_fields(upstream_headers, prepared, fields)
        self._exchange.begin(200, [*fields, *own_headers(self._call, prepared, fields, whole=False)])

    def _error_event(self, failure: Failure) -> LastWrites:
        if self.committed:
            return self.encoding.fail(failure) if self.encoding.in_use else LastWrites()  # else the pipe has written it
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
        if self._passing:
            self._pass_keep_alives()
            return
        keep_alive = self.keep_alive if self.committed else self._call.client.keep_alive
        if keep_alive and self._prepared is not None:
            self._send_head(self._prepared, self._upstream_headers)
            self._exchange.write(keep_alive)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HeldEvents:
    """The bytes of a reply before its first token. Complete comments and pings can be taken out of them."""

    __slots__ = ("_events", "_ping", "_rest", "_searched")

    def __init__(self, keep_alive: bytes) -> None:
        self._ping = keep_alive  # an event of this name is one
        self._events = bytearray()  # without keep-alives
        self._rest = bytearray()  # that was not searched for them
        self._searched = 0  # bytes of it that hold no end of an event

    def __len__(self) -> int:
        return len(self._events) + len(self._rest)

    def add(self, data: bytes) -> None:
        self._rest += data

    def take(self) -> bytes:
        held = bytes(self._events + self._rest)
        self.clear()
        return held

    def clear(self) -> None:
        self._events.clear()
        self._rest.clear()
        self._searched = 0

    def take_keep_alives(self) -> bytes:
        found, start = bytearray(), 0
        for end in [blank.end() for blank in BLANK_LINE.finditer(self._rest, self._searched)]:
            block = bytes(self._rest[start:end])
            (found if self._is_keep_alive(block) else self._events).extend(block)
            start = end
        del self._rest[:start]
        self._searched = max(0, len(self._rest) - LONGEST_BLANK + 1)
        return bytes(found)

    def _is_keep_alive(self, block: bytes) -> bool:
        lines = [line for line in block.splitlines() if line]
        if all(line.startswith(b":") for line in lines):
            return True
        name = _event_name(lines[0])
        return name != b"" and name == _event_name(self._ping.partition(b"\n")[0])


def _event_name(line: bytes) -> bytes:
    """Return the name in a line that names an event; empty if it is another."""
    field, _, name = line.partition(b":")
    return name.strip() if field == b"event" else b""


EncodeWhole = Callable[[Sequence[Event], Ledger], bytes]


class WholeWriter:
    """Writes a reply as one body, once it is complete."""

    streams = False
    committed = False
    head_sent = False
    held_bytes = 0
    keep_alive = b""

    def __init__(
        self, exchange: ReplySink, call: Call, on_guard_trip: Callable[[str], None], encode: EncodeWhole
    ) -> None:
        self._exchange = exchange
        self._call = call
        self._on_guard_trip = on_guard_trip
        self._encode = encode
        self._encoding: ClientEncoding | None = None
        self._prepared: Prepared | None = None
        self._unchanged: tuple[Headers, bytes] | None = None

    @property
    def encoding(self) -> ClientEncoding:
        """Made when it is first used: a body that passes unchanged needs none."""
        if self._encoding is None:
            self._collector = LastCollector()
            self._encoding = ClientEncoding(
                self._collector.make,
                self._on_guard_trip,
                serial=False,
                joins=False,
                cites_apart=self._call.client.cites_apart,
                any_arguments=self._call.client.arguments_are_text,
            )
        return self._encoding

    def begin_turn(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._unchanged = None
        if self._encoding is not None:
            self._encoding.in_use = False

    def begin_answer(self, headers: Headers) -> None:
        """Do nothing: nothing is sent before the end."""

    def hold(self, data: bytes) -> None:
        """Do nothing: the collector has it."""

    def pass_keep_alives(self) -> bool:
        return True

    def take_held(self) -> bytes:
        return b""

    def keep_apart(self, data: bytes) -> None:
        """Do nothing: a whole reply has no last write."""

    async def commit(self, prepared: Prepared, headers: Headers, held: bytes) -> None:
        """Do nothing: nothing is sent before the end."""

    def write(self, data: bytes) -> bool:
        return True

    async def wait_writable(self) -> None:
        return

    async def send(self, data: bytes) -> None:
        return

    def keep_for_end(self, data: bytes) -> None:
        return

    def resume_keep_alives(self) -> None:
        return

    def take_unchanged(self, headers: Headers, body: bytes) -> None:
        """Send the upstream's own body at the end."""
        self._unchanged = (headers, body)

    async def finish(self) -> None:
        prepared = self._prepared
        assert prepared is not None
        if self._unchanged is not None:
            headers, body = self._unchanged
            fields = headers_to_forward(headers if prepared.owner else drop_account_headers(headers), prepared.secrets)
        else:
            self.encoding.finish()
            ledger = prepared.ledger if isinstance(prepared, Translated) else Ledger()
            events: Sequence[Event] = self._collector.last.events
            if self._call.client.cites_apart:
                events = split_citations(events)
            fields, body = [JSON], self._encode(events, ledger)
        state = self._call.state
        if state is not None and self._unchanged is not None:
            state.observe(body, whole=True)
        if state is not None and not await state.commit() and self._unchanged is None:
            body = state.mark_unstored(body)
        self._exchange.respond(200, [*fields, *own_headers(self._call, prepared, fields, whole=True)], body)

    async def fail(self, failure: Failure) -> None:
        raise AssertionError("a whole reply is never begun: its failures are HTTP errors")

    async def finish_failed(self, failure: Failure) -> None:
        await self.fail(failure)

    def close(self) -> None:
        return


def own_headers(call: Call, prepared: Prepared, given: list[Header], *, whole: bool) -> list[Header]:
    """Return the headers that name the route and count the losses; for a stream, those of its request."""
    head: list[Header] = [
        *id_headers(call.client, call.id, given),
        (b"x-dragoman-route", str(prepared.route).encode("ascii", "replace")),
    ]
    if type(prepared) is Passthrough:
        return head
    count = len(prepared.ledger) if whole else prepared.losses
    losses = format_loss_headers(tuple(prepared.ledger)[:count], count, call.explain)
    return head + (redact_known_in_fields(losses, prepared.secrets) if call.explain else losses)


def _stream_fields(headers: Headers, prepared: Prepared, own: list[Header]) -> list[Header]:
    fields = headers_to_forward(headers if prepared.owner else drop_account_headers(headers), prepared.secrets)
    if not is_named_stream(headers):  # its content type is that of a document
        fields = [field for field in fields if field[0] != b"content-type"]
    given = {name for name, _ in fields}
    return [*fields, *(field for field in own if field[0] not in given)]


ResponseWriter = StreamWriter | WholeWriter


class OpenReply(Struct, frozen=True):
    """A reply that is not finished yet."""

    call: Call
    memory: LostCallMemory
    writer: ResponseWriter
    pipe: Pipe | None  # of the last turn; None if it got no reply

    @property
    def translation(self) -> TranslationPipe:
        """Return the pipe of a reply that is translated."""
        assert isinstance(self.pipe, TranslationPipe)
        return self.pipe

    def write(self, data: bytes) -> None:
        """Write this for the client, with the next bytes or with the end."""
        self.writer.keep_for_end(data)

"""The client's side of a streamed reply until its first event: the head, and keep-alives while upstreams are asked.

Until an event of the reply itself has been sent, another target may still answer, even where the head is out already.
"""

import asyncio
import math
import re

from dragoman.flow.call import Call
from dragoman.flow.headers import id_headers, loss_headers, passed_on, without_account
from dragoman.flow.line import APART
from dragoman.flow.prepare import Prepared
from dragoman.flow.shape import is_named_stream
from dragoman.framing.known_secrets import hide_in_fields
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header, Headers
from dragoman.routing.resolve import Route

EVENT_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
MAX_HELD_BYTES = 1024 * 1024  # of a reply that passes through and has no token yet
BLANK = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class ClientStream:
    """Sends the head once nothing has come for `keep_alive_s`, then a keep-alive as often, until `stop`.

    Nothing of ours is put between the bytes of a reply that passes through: there the upstream's own head and
    keep-alives are sent (`pass_on`), and where it sends none, the client waits as it would at the vendor's.
    """

    __slots__ = (
        "_call",
        "_due_at",
        "_exchange",
        "_interval_s",
        "_loop",
        "_passing",
        "_prepared",
        "_stuck",
        "_timer",
        "head_route",
    )

    def __init__(self, exchange: Exchange, call: Call, interval_s: float) -> None:
        self._exchange = exchange
        self._call = call
        self._interval_s = interval_s
        self._prepared: Prepared | None = None
        self._passing = False  # bytes of the upstream that is asked now have been sent
        self._stuck = False  # it has sent something that is no keep-alive, and nothing that begins a reply
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + interval_s
        self._timer = self._loop.call_at(self._due_at, self._send_keep_alive)
        self.head_route: Route | None = None  # whom the head names, once it is sent

    @property
    def begun(self) -> bool:
        """Whether the head is sent, so that an error can only be an event."""
        return self.head_route is not None

    def attempt(self, prepared: Prepared) -> None:
        """From now on this upstream is asked."""
        self._prepared = prepared
        self._passing = self._stuck = False

    def begin(self, prepared: Prepared, upstream_headers: Headers | None) -> None:
        """Send the head unless it is sent; `upstream_headers` of a reply that passes through go along."""
        if self.begun:
            return
        self.head_route = prepared.route
        fields = list(EVENT_STREAM) if upstream_headers is None else _stream_fields(upstream_headers, prepared)
        self._exchange.start(200, [*fields, *own_headers(self._call, prepared, prepared.losses, fields)])

    def due_at_most(self, held: bytes) -> float:
        """When the client must be sent what is held, or the head alone, if nothing more comes."""
        waits = self.begun or self._stuck or (held and not held.endswith(APART))
        return math.inf if waits else self._due_at

    def is_due(self, held: bytes) -> bool:
        return self._loop.time() >= self._due_at or len(held) > MAX_HELD_BYTES

    async def pass_on(self, prepared: Prepared, headers: Headers, held: bytes) -> bytes:
        """Send the keep-alives of an upstream whose reply passes through; what else is held is returned."""
        end = max((blank.end() for blank in BLANK.finditer(held)), default=0)
        self._stuck = self._stuck or not self._are_keep_alives(held[:end])
        if self._stuck:
            return held
        self.begin(prepared, headers)
        self._passing = self._passing or end > 0
        await self._exchange.send(held[:end])
        return held[end:]

    def _are_keep_alives(self, events: bytes) -> bool:
        """Whether these are comments and pings alone: another target's reply may follow them."""
        ping = self._call.client.keep_alive.partition(b"\n")[0]
        blocks = (block.splitlines() for block in BLANK.split(events) if block)
        return all(lines[0] == ping or all(line.startswith(b":") for line in lines) for lines in blocks)

    def fail(self, error: bytes) -> None:
        """End the stream with the protocol's error event: no target has answered."""
        self._exchange.finish(error)

    def stop(self) -> None:
        self._timer.cancel()

    def _send_keep_alive(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._send_keep_alive)
        prepared = self._prepared
        if prepared is None or self._passing or (prepared.passthrough and not self.begun):
            return
        self.begin(prepared, None)
        self._exchange.write(self._call.client.keep_alive)


def own_headers(call: Call, prepared: Prepared, losses: int, given: list[Header]) -> list[Header]:
    """Who answers, and the first `losses` that the translation lost."""
    head: list[Header] = [
        *id_headers(call.client, call.id, given),
        (b"x-dragoman-route", str(prepared.route).encode("ascii", "replace")),
    ]
    if prepared.ledger is not None:
        told = loss_headers(tuple(prepared.ledger)[:losses], losses, call.explain)
        head += hide_in_fields(told, prepared.secrets) if call.explain else told
    return head


def _stream_fields(headers: Headers, prepared: Prepared) -> list[Header]:
    fields = passed_on(headers if prepared.owner else without_account(headers), prepared.secrets)
    if not is_named_stream(headers):  # it bears a document's name
        fields = [field for field in fields if field[0] != b"content-type"]
    given = {name for name, _ in fields}
    return [*fields, *(field for field in EVENT_STREAM if field[0] not in given)]

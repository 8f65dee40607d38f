"""A client's call comes in; it is routed, attempted, and answered, whole or as a stream."""

import logging
import random
import time
from collections.abc import Sequence

from dragoman.accounts.memory import Memory
from dragoman.flow.asking import Asking
from dragoman.flow.audience import Audience
from dragoman.flow.call import Call
from dragoman.flow.capturing import Capturing
from dragoman.flow.headers import id_headers, loss_headers, passed_on
from dragoman.flow.line import Tap
from dragoman.flow.machines import LineBuilder
from dragoman.flow.mend import Mender
from dragoman.flow.open import Opener, Streaming, Whole
from dragoman.flow.recorded_world import WatchedMemory, watched
from dragoman.flow.relay import Relay
from dragoman.flow.rotation import awake
from dragoman.flow.shape import is_named_stream
from dragoman.flow.world import World, targets
from dragoman.framing.known_secrets import hide_in_fields
from dragoman.hub.outcome import Observe
from dragoman.hub.ports import Asked
from dragoman.net.exchange import Exchange
from dragoman.net.headers import JSON, Header
from dragoman.observers.watch import Watch
from dragoman.routing.resolve import Route

log = logging.getLogger("dragoman.requests")

EVENT_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class Gateway:
    """Answers calls in the world of the moment."""

    def __init__(self, world: World, memory: Memory, observers: Sequence[Observe] = ()) -> None:
        self._memory = memory
        self.audience = Audience(observers)
        self._mender = Mender(memory)
        self.capturing = Capturing()
        self._lines = LineBuilder(self._asked, _watch, self._tripped)
        self.adopt(world)
        self.trips = 0  # how often the grammar guard had to step in
        self.answered = 0
        self.refused = 0
        self.streams = 0  # on their way to a client

    def adopt(self, world: World) -> None:
        """From the next request on, this is the world."""
        self.world = world
        self._opener = Opener(world.config.server, self._lines, self._mender)

    async def answer(self, exchange: Exchange, call: Call) -> None:
        """Raises Refused when no target could be brought to its first token."""
        recording = call.trail.recording
        world, opener, memory = self.world, self._opener, self._memory
        if recording is not None:
            world, memory = watched(world, recording, call.tenant), WatchedMemory(memory, recording)
            lines = LineBuilder(self._asked, recording.watch, recording.hearing(self._tripped))
            opener = Opener(world.config.server, lines, self._mender)
        routes = awake(await targets(world, call.model), world.providers)
        if recording is not None:
            recording.routes = routes
        call.continues = call.stream and world.config.retry.continue_streams and _has_heirs(routes, world)
        asking = Asking(call, world, opener, memory, routes)
        reply = await asking.first()
        if isinstance(reply, Whole):
            fields = passed_on(reply.headers, reply.prepared.secrets) if reply.as_is else [JSON]
            exchange.respond(200, [*fields, *own_headers(call, reply, fields)], reply.body)
        else:
            fields = _stream_fields(reply)
            head = [*fields, *own_headers(call, reply, fields)]
            self.streams += 1
            try:
                await Relay(exchange, call, reply, world.config.server, self._mender, asking).run(head)
            finally:
                self.streams -= 1
        self.answered += 1

    def _asked(self, call: Call) -> Asked:
        done = self.world.config.server.responses_done
        return Asked(call.request(), call.model, int(call.trail.began), _mint, time.time, done)

    def _tripped(self, what: str) -> None:
        self.trips += 1
        log.error("the grammar guard stepped in: %s", what)


def _has_heirs(routes: tuple[Route, ...], world: World) -> bool:
    """Whether there is anybody who could go on: another target, or another credential."""
    first = world.providers.get(routes[0].provider)
    return len(routes) > 1 or (first is not None and first.pool is not None)


def own_headers(call: Call, reply: Whole | Streaming, given: list[Header]) -> list[Header]:
    """Who answered, and what the translation lost: of a stream the request's part, however much has come by now."""
    prepared = reply.prepared
    head: list[Header] = [
        *id_headers(call.client, call.id, given),
        (b"x-dragoman-route", str(prepared.route).encode("ascii", "replace")),
    ]
    if prepared.ledger is not None:
        count = len(prepared.ledger) if isinstance(reply, Whole) else prepared.losses
        told = loss_headers(tuple(prepared.ledger)[:count], count, call.explain)
        head += hide_in_fields(told, prepared.secrets) if call.explain else told
    return head


def _stream_fields(reply: Streaming) -> list[Header]:
    if not isinstance(reply.line, Tap):
        return list(EVENT_STREAM)
    headers = reply.answer.headers
    fields = passed_on(headers, reply.prepared.secrets)
    if not is_named_stream(headers):  # it bears a document's name
        fields = [field for field in fields if field[0] != b"content-type"]
    given = {name for name, _ in fields}
    return [*fields, *(field for field in EVENT_STREAM if field[0] not in given)]


def _watch() -> Watch:
    return Watch(time.monotonic)


def _mint(prefix: str) -> str:
    # To be unique is enough, for an id guards nothing: the system need not be asked for each.
    return f"{prefix}{random.getrandbits(96):024x}"

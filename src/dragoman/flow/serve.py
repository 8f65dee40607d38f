"""A client's call comes in; it is routed, attempted, and answered, whole or as a stream."""

import asyncio
import logging
import random
import time
from collections.abc import Sequence

from dragoman.accounts.memory import Memory
from dragoman.config.settings import Server
from dragoman.flow.asking import Asking
from dragoman.flow.audience import Audience
from dragoman.flow.call import Call
from dragoman.flow.capturing import Capturing
from dragoman.flow.client_stream import ClientStream, own_headers
from dragoman.flow.headers import passed_on, without_account
from dragoman.flow.line import Tap
from dragoman.flow.machines import LineBuilder
from dragoman.flow.mend import Mender
from dragoman.flow.open import Opener
from dragoman.flow.recorded_world import WatchedMemory, watched
from dragoman.flow.relay import STOPPING, Relay
from dragoman.flow.rotation import awake
from dragoman.flow.world import World, targets
from dragoman.hub.failure import Refused
from dragoman.hub.outcome import Observe
from dragoman.hub.ports import Asked
from dragoman.net.exchange import Exchange
from dragoman.net.headers import JSON
from dragoman.observers.watch import Watch
from dragoman.routing.resolve import Route

log = logging.getLogger("dragoman.requests")


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
            world, memory = watched(world, recording, call), WatchedMemory(memory, recording)
            lines = LineBuilder(self._asked, recording.watch, recording.hearing(self._tripped))
            opener = Opener(world.config.server, lines, self._mender)
        routes = awake(await targets(world, call.model), world.providers)
        if recording is not None:
            recording.routes = routes
        call.continues = call.stream and world.config.retry.continue_streams and _has_heirs(routes, world)
        asking = Asking(call, world, opener, memory, routes)
        if call.stream:
            await self._stream(exchange, call, asking, world.config.server)
        else:
            reply = await asking.whole()
            headers = reply.headers if call.is_owner else without_account(reply.headers)
            fields = passed_on(headers, reply.prepared.secrets) if reply.as_is else [JSON]
            losses = len(reply.prepared.ledger or ())
            exchange.respond(200, [*fields, *own_headers(call, reply.prepared, losses, fields)], reply.body)
        self.answered += 1

    async def _stream(self, exchange: Exchange, call: Call, asking: Asking, server: Server) -> None:
        """Raises Refused also where the error is told in the stream, since its head was sent already."""
        client = ClientStream(exchange, call, server.keep_alive_s)
        try:
            reply = await asking.stream(client)
        except (Refused, asyncio.CancelledError) as fault:
            if client.begun and not exchange.gone:
                failure = fault.failure if isinstance(fault, Refused) else STOPPING
                client.fail(self._lines.error_event(call, failure))
            raise
        finally:
            client.stop()
        client.begin(reply.prepared, reply.answer.headers if isinstance(reply.line, Tap) else None)
        head_route = client.head_route or reply.prepared.route
        self.streams += 1
        try:
            await Relay(exchange, call, reply, head_route, server, self._mender, asking).run()
        finally:
            self.streams -= 1

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


def _watch() -> Watch:
    return Watch(time.monotonic)


def _mint(prefix: str) -> str:
    # To be unique is enough, for an id guards nothing: the system need not be asked for each.
    return f"{prefix}{random.getrandbits(96):024x}"

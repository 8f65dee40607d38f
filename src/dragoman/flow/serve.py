"""A client's call comes in; it is routed, attempted, and answered, whole or as a stream."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.accounts.memory import Memory
from dragoman.config.settings import Config
from dragoman.flow.attempt import SecondChances, first_success
from dragoman.flow.call import Call
from dragoman.flow.fetch import Fetcher
from dragoman.flow.headers import id_headers, loss_headers, passed_on
from dragoman.flow.line import Tap
from dragoman.flow.mend import Mender
from dragoman.flow.open import LineBuilder, Opener, Streaming, Whole
from dragoman.flow.prepare import Change, Fitting, Prepared, prepare
from dragoman.flow.relay import Relay
from dragoman.hub.failure import Failure, Kind, Refused
from dragoman.hub.outcome import Observe, Outcome
from dragoman.hub.ports import Asked, Protocol
from dragoman.hub.profile import Profile
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header
from dragoman.net.tasks import place_of
from dragoman.observers.watch import Watch
from dragoman.passes.truncation_notice import digests, tell
from dragoman.providers.catalogue import Catalogue
from dragoman.providers.profiles import profile_of
from dragoman.providers.provider import Provider
from dragoman.routing.resolve import Known, Route, configured_targets, listed_targets, nearest

log = logging.getLogger("dragoman.requests")

JSON = (b"content-type", b"application/json")
EVENT_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class World(Struct, frozen=True):
    """The configuration in force and what was made of it; an edit makes a new one, requests under way keep theirs."""

    config: Config
    providers: Mapping[str, Provider]
    catalogues: Mapping[str, Catalogue]
    protocols: dict[str, Protocol]
    fetcher: Fetcher | None
    budgets: dict[str, int]  # effort -> thinking budget
    learnt: dict[str, set[str]]  # oddities that compatible servers have shown, by provider


class Gateway:
    """Answers calls in the world of the moment."""

    def __init__(self, world: World, memory: Memory, observers: Sequence[Observe] = ()) -> None:
        self._memory = memory
        self._observers = tuple(observers)
        self._mender = Mender(memory)
        self._lines = LineBuilder(self._asked, _watch, self._tripped)
        self.adopt(world)
        self.trips = 0  # how often the grammar guard had to step in
        self.answered = 0
        self.refused = 0
        self.unobserved = 0  # how often an observer failed
        self.streams = 0  # on their way to a client

    def adopt(self, world: World) -> None:
        """From the next request on, this is the world."""
        self.world = world
        self._opener = Opener(world.config.server, self._lines, self._mender)

    async def answer(self, exchange: Exchange, call: Call) -> None:
        """Raises Refused when no target could be brought to its first token."""
        world, trail = self.world, call.trail
        opener = self._opener
        chances = SecondChances(world.learnt)

        async def ask(route: Route) -> Whole | Streaming:
            provider = _provider(world, route)
            notices = await self._notices(call, provider)
            while True:
                try:
                    prepared = await prepare(call, route, provider, fitting(world, route), [*chances.changes, *notices])
                    return await (opener.stream(call, prepared) if call.stream else opener.whole(call, prepared))
                except Refused as refused:
                    trail.failed_step(route, refused)
                    if not await chances.granted(provider, refused):
                        raise

        routes = await targets(world, call.model)
        reply = await first_success(routes, world.config.retry, _jitter, ask)
        trail.answered(reply.prepared.route, reply.prepared.protocol.name, reply.prepared.ledger, reply)
        if isinstance(reply, Whole):
            fields = passed_on(reply.headers) if reply.as_is else [JSON]
            exchange.respond(200, [*fields, *own_headers(call, reply.prepared, fields)], reply.body)
        else:
            fields = _stream_fields(reply)
            head = [*fields, *own_headers(call, reply.prepared, fields)]
            self.streams += 1
            try:
                await Relay(exchange, call, reply, world.config.server, self._mender).run(head)
            finally:
                self.streams -= 1
        self.answered += 1

    def tell(self, outcome: Outcome) -> None:
        """Every observer hears how a request ended; one that fails harms nobody."""
        for observe in self._observers:
            try:
                observe(outcome)
            except Exception as bug:
                self.unobserved += 1
                log.error("an observer failed: %s", place_of(bug))

    async def _notices(self, call: Call, provider: Provider) -> list[Change]:
        """What the model must be told that its last reply in this conversation lost."""
        if not provider.withholds_cut_calls:
            return []
        lost = await self._memory.recall(digests(call.request()))
        return [lambda request: tell(request, lost)] if lost else []

    def _asked(self, call: Call) -> Asked:
        done = self.world.config.server.responses_done
        return Asked(call.request(), call.model, int(time.time()), _mint, done)

    def _tripped(self, what: str) -> None:
        self.trips += 1
        log.error("the grammar guard stepped in: %s", what)


async def targets(world: World, name: str) -> tuple[Route, ...]:
    """Who answers for a model name; raises Refused with the nearest names where nobody does."""
    routes = configured_targets(name, world.config.models, world.providers)
    if routes:
        return routes
    await asyncio.gather(*(catalogue.settled() for catalogue in world.catalogues.values()))
    catalogues = known(world)
    routes = listed_targets(name, catalogues)
    if routes:
        return routes
    close = ", ".join(nearest(name, world.config.models, catalogues))
    message = f"The model {name!r} does not exist here. Nearest names: {close}. GET /v1/models lists all."
    raise Refused(Failure(Kind.NOT_FOUND, message, code="model_not_found", at="/model"))


def _provider(world: World, route: Route) -> Provider:
    provider = world.providers.get(route.provider)
    if provider is None:
        raise Refused(Failure(Kind.NOT_FOUND, f"No provider is called {route.provider!r}.", code="model_not_found"))
    return provider


def fitting(world: World, route: Route) -> Fitting:
    learnt = frozenset(world.learnt.get(route.provider, ()))
    return Fitting(world.protocols, _profile(world, route), world.budgets, learnt, world.fetcher)


def _profile(world: World, route: Route) -> Profile:
    """What is known of a model; the most it writes is what its provider lists, where it lists that."""
    profile = profile_of(route.model)
    catalogue = world.catalogues.get(route.provider)
    most = None if catalogue is None else catalogue.most_output(route.model)
    return profile if most is None else replace(profile, max_output=most)


def known(world: World) -> dict[str, Known]:
    return {
        name: Known(tuple(model.id for model in catalogue.known()), catalogue.complete, world.providers[name].rename)
        for name, catalogue in world.catalogues.items()
    }


def own_headers(call: Call, prepared: Prepared, given: list[Header]) -> list[Header]:
    """Who answered, and what the translation lost."""
    head: list[Header] = [
        *id_headers(call.client, call.id, given),
        (b"x-dragoman-route", str(prepared.route).encode("ascii", "replace")),
    ]
    if prepared.ledger is not None:
        head += loss_headers(prepared.ledger, call.explain)
    return head


def _stream_fields(reply: Streaming) -> list[Header]:
    if not isinstance(reply.line, Tap):
        return list(EVENT_STREAM)
    fields = passed_on(reply.answer.headers)
    given = {name for name, _ in fields}
    return [*fields, *(field for field in EVENT_STREAM if field[0] not in given)]


def _watch() -> Watch:
    return Watch(time.monotonic)


def _mint(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def _jitter() -> float:
    return random.uniform(0.75, 1.25)  # spreads retries, guards nothing

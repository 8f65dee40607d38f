"""One call and its targets come in; the first of them that answers goes out, and the next one where that breaks off."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from dragoman.accounts.memory import Memory
from dragoman.flow.attempt import AFTER, SecondChances, first_success
from dragoman.flow.call import Call
from dragoman.flow.client_stream import ClientStream
from dragoman.flow.line import Translation
from dragoman.flow.offload import run_off_loop
from dragoman.flow.open import Opener, Streaming, Whole
from dragoman.flow.prepare import Change, Prepared, prepare
from dragoman.flow.rotation import ask_alone, go_round
from dragoman.flow.sink import Sink
from dragoman.flow.world import World, fitting, provider_of
from dragoman.hub.failure import Failure, Refused
from dragoman.hub.usage import Usage
from dragoman.passes.go_on import continuation_marker, go_on
from dragoman.passes.truncation_notice import digests, tell
from dragoman.providers.provider import Provider
from dragoman.routing.resolve import Route

log = logging.getLogger(__name__)


class Asking:
    """What one request tries, in the world that it began in."""

    def __init__(self, call: Call, world: World, opener: Opener, memory: Memory, routes: tuple[Route, ...]) -> None:
        self._call = call
        self._world = world
        self._opener = opener
        self._memory = memory
        self._routes = routes
        self._chances = SecondChances(world.learnt, call.tenant)
        self._broken: dict[str, set[int]] = {}  # provider -> whose credentials have broken off this reply

    async def whole(self) -> Whole:
        """The whole reply of the first target that answers; raises Refused when none does."""
        reply = await self._first(self._routes, self._ask)
        assert isinstance(reply, Whole)
        self._note(reply)
        return reply

    async def stream(self, client: ClientStream) -> Streaming:
        """The stream of the first target that comes to its first token; raises Refused when none does."""

        async def ask(route: Route) -> Whole | Streaming:
            return await self._ask(route, client=client)

        reply = await self._first(self._routes, ask)
        assert isinstance(reply, Streaming)
        self._note(reply)
        return reply

    async def _first(
        self, routes: tuple[Route, ...], ask: Callable[[Route], Awaitable[Whole | Streaming]]
    ) -> Whole | Streaming:
        def repeats_timeouts(route: Route) -> bool:
            provider = self._world.providers.get(route.provider)
            return provider is not None and provider.repeats_timeouts

        return await first_success(routes, self._world.config.retry, _jitter, ask, repeats_timeouts)

    async def heir(self, broken: Streaming, sink: Sink, failure: Failure) -> Streaming | None:
        """A reply of whoever comes after this one, which goes on with what it has said; None where nobody does."""
        route = broken.prepared.route
        self._call.trail.failed_step(route, Refused(failure))
        rest = self._after(broken.prepared, failure)
        if not rest:
            return None
        said = sink.said
        marker = continuation_marker(said)
        sink.resume(broken.line.used_so_far() if isinstance(broken.line, Translation) else Usage(), marker)

        async def ask(route: Route) -> Whole | Streaming:
            return await self._ask(route, [lambda request, ledger: go_on(request, said, marker)], sink)

        try:
            reply = await self._first(rest, ask)
        except Refused:
            return None
        assert isinstance(reply, Streaming)
        assert reply.prepared.ledger is not None  # whoever continues is translated
        sink.gone_on(reply.prepared.ledger)
        self._note(reply)
        log.warning("%s broke off (%s), %s goes on", _named(broken), failure.kind.value, _named(reply))
        return reply

    def _after(self, broken: Prepared, failure: Failure) -> tuple[Route, ...]:
        """The targets after this one, and this one's other credentials: before them where the table says so."""
        route, provider = broken.route, broken.provider
        rest = self._routes[self._routes.index(route) + 1 :]
        gone = self._broken.setdefault(provider.name, set())
        gone.add(provider.seat)
        if provider.pool is None or len(gone) == len(provider.pool.members):
            return rest
        return (route, *rest) if AFTER[failure.kind].another else (*rest, route)

    async def _ask(
        self,
        route: Route,
        more: Sequence[Change] = (),
        sink: Sink | None = None,
        client: ClientStream | None = None,
    ) -> Whole | Streaming:
        """Of several credentials, one after another is asked."""
        provider = provider_of(self._world, route)
        changes = [*more, *await self._notices(provider)]

        async def ask(member: Provider) -> Whole | Streaming:
            return await self._ask_with(member, route, changes, lambda prepared: self._open(prepared, sink, client))

        if provider.pool is not None:
            return await go_round(self._call, provider, route.model, ask, self._broken.get(route.provider, ()))
        if len(self._routes) > 1:
            return await ask_alone(provider, route.model, ask)
        return await ask(provider)

    async def _ask_with(
        self,
        provider: Provider,
        route: Route,
        changes: Sequence[Change],
        open_reply: Callable[[Prepared], Awaitable[Whole | Streaming]],
    ) -> Whole | Streaming:
        call, chances = self._call, self._chances
        while True:
            try:
                fit = fitting(self._world, route, call.tenant)  # anew each time: a refusal may have taught something
                prepared = await prepare(call, route, provider, fit, [*chances.changes, *changes])
                return await open_reply(prepared)
            except asyncio.CancelledError:
                call.trail.left_step(route)
                raise
            except Refused as refused:
                call.trail.failed_step(route, refused)
                call.release_reply()
                if not await chances.granted(provider, route.model, refused):
                    raise

    def _open(self, prepared: Prepared, sink: Sink | None, client: ClientStream | None) -> Awaitable[Whole | Streaming]:
        if self._call.stream:
            return self._opener.stream(self._call, prepared, sink, client)
        return self._opener.whole(self._call, prepared)

    async def _notices(self, provider: Provider) -> list[Change]:
        """What the model must be told that its last reply in this conversation lost."""
        if not provider.withholds_cut_calls:
            return []
        call = self._call
        await call.read()
        asked = await run_off_loop(len(call.body), lambda: digests(call.request()))
        lost = await self._memory.recall(call.tenant, asked)
        return [lambda request, ledger: tell(request, lost)] if lost else []

    def _note(self, reply: Whole | Streaming) -> None:
        prepared = reply.prepared
        self._call.trail.answered(prepared.route, prepared.protocol.name, prepared.ledger, reply)


def _named(reply: Streaming) -> str:
    prepared = reply.prepared
    credential = prepared.provider.credential
    return f"{prepared.route}, credential {credential}" if credential else str(prepared.route)


def _jitter() -> float:
    return random.uniform(0.75, 1.25)  # spreads retries, guards nothing

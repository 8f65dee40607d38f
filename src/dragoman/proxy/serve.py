"""The story of a call, from its head to the last byte of its reply, and the shorter stories made of the same steps.

Each is read from the top to its end. A refusal before anything was sent is a RequestError that leaves through the whole
story; whoever received the request renders it. docs/architecture.md has a table of the steps that every route passes.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.net.sink import ReplySink
from dragoman.proxy.call import Call
from dragoman.proxy.count_tokens import count_tokens
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.run_headers import choose_policy, names_run
from dragoman.proxy.steps.accept_background import accept_background, is_queued
from dragoman.proxy.steps.admit import QUEUED_S, admit, check_limits
from dragoman.proxy.steps.allow_leaving import allow_leaving
from dragoman.proxy.steps.answer_without_model import LaneSource, answer_without_model
from dragoman.proxy.steps.choose_routes import choose_relayed_routes, choose_routes, find_routes
from dragoman.proxy.steps.compact import compact
from dragoman.proxy.steps.find_run import find_parked, find_same
from dragoman.proxy.steps.follow_run import follow
from dragoman.proxy.steps.hooks import run_hooks
from dragoman.proxy.steps.observe import LiveView, observe, observe_without_row
from dragoman.proxy.steps.parked_runs import ParkedRuns, open_run
from dragoman.proxy.steps.read_body import read_body, read_relayed_body
from dragoman.proxy.steps.restore_state import StateSource, record_state, restore_state
from dragoman.proxy.steps.room import check_room
from dragoman.state.background import BackgroundRuns
from dragoman.state.stored_call import StoredCall

if TYPE_CHECKING:  # imported when such a request comes
    from dragoman.proxy.relay import RelayedCall


class Services(Struct):
    """What the steps use."""

    gateway: Gateway
    parked: ParkedRuns
    state: StateSource | None = None  # None: nothing is kept
    counted_state: StateSource | None = None  # the same for calls that are only counted
    background: BackgroundRuns | None = None  # None: no response is queued
    live: LiveView | None = None  # None: there is no console


async def serve(services: Services, call: Call, sink: ReplySink) -> None:
    """Answer a call: of every path of a protocol that asks a model, and of POST /responses/compact."""
    gateway, parked, background = services.gateway, services.parked, services.background
    with observe(gateway, call, sink, services.live):
        check_room(gateway)
        if names_run(call.headers):
            named = await find_parked(parked, call)
            return await follow(parked, call, sink, named)
        await read_body(call, gateway.runtime)
        policy = choose_policy(call.headers, parked.settings())
        joined = None if policy is None else await find_same(parked, call, policy)
        if joined is not None:  # not paid for twice
            return await follow(parked, call, sink, joined)
        with open_run(parked, call, sink) as sink:  # at once: nothing is awaited after the search
            async with restore_state(services.state, call, sink) as state:
                await choose_routes(call, gateway.runtime)  # after the state, which may pin a target
                run_hooks(call)
                if background is not None and state is not None and is_queued(call, state):
                    await check_limits(gateway, call)
                    return await accept_background(background, call, state, sink)
                allow_leaving(state, sink)  # from here on, unless the call is parked
                await admit(gateway, call)
                if call.compacts is not None:
                    await compact(gateway, call, state, sink)
                else:
                    await gateway.answer(call, sink)


async def serve_lane(services: Services, call: Call, sink: ReplySink, source: StateSource) -> None:
    """Answer a call of a WebSocket's lane, with the memory of its connection; it ends with that."""
    gateway = services.gateway
    with observe(gateway, call, sink, services.live):
        check_room(gateway)
        await read_body(call, gateway.runtime)
        async with restore_state(source, call, sink) as state:
            await choose_routes(call, gateway.runtime)
            run_hooks(call)
            allow_leaving(state, sink)
            await admit(gateway, call)
            if call.compacts is not None:
                await compact(gateway, call, state, sink)
            else:
                await gateway.answer(call, sink)


async def serve_without_model(services: Services, call: Call, sink: ReplySink, source: LaneSource) -> None:
    """Answer a call of a lane with `generate: false`; it is free, and has no row."""
    await read_body(call, services.gateway.runtime)
    async with restore_state(source, call, sink) as state:
        assert state is not None  # of every call of a lane
        await answer_without_model(source, call, state, sink)


async def run_in_background(services: Services, call: Call, sink: ReplySink, state: StoredCall) -> None:
    """Run a response that was queued, with the state that was stored with it; whoever runs it stores its end."""
    gateway = services.gateway
    with observe(gateway, call, sink, services.live):
        check_room(gateway)
        await read_body(call, gateway.runtime)
        call.state = state
        await choose_routes(call, gateway.runtime)
        sink.allow_leaving()
        await admit(gateway, call, queued_s=QUEUED_S, on_wait=state.on_wait)
        await gateway.answer(call, sink)


async def count(services: Services, call: Call, sink: ReplySink) -> None:
    """Count the tokens of a call; nothing is kept, and it is free."""
    gateway = services.gateway
    with observe_without_row(gateway, call, sink):
        check_room(gateway)
        await read_body(call, gateway.runtime)
        async with restore_state(services.counted_state, call, sink) as state:
            if state is not None:
                call.state = state  # even of one that would be compacted
                record_state(call, state)
            await find_routes(call, gateway.runtime)
            await count_tokens(call, sink)


async def relay(services: Services, call: "RelayedCall", sink: ReplySink) -> None:
    """Answer a call of one of the other OpenAI paths."""
    gateway = services.gateway
    with observe(gateway, call, sink, services.live), call:
        check_room(gateway)
        await read_relayed_body(call, gateway.runtime)
        await choose_relayed_routes(call, gateway.runtime)
        run_hooks(call)
        await admit(gateway, call)
        await gateway.answer_relayed(call, sink)


Story = Callable[..., Awaitable[None]]

"""A call takes what its limits count before an upstream is paid for, waits in line for it, or is refused."""

import asyncio
import time
from zoneinfo import ZoneInfo

import pytest

from dragoman.config.settings import LimitSettings, ProviderLimits
from dragoman.net.sink import CollectorSink
from dragoman.proxy.call import Call
from dragoman.proxy.serve import serve
from dragoman.proxy.steps.admit import admit, check_limits
from dragoman.proxy.steps.choose_routes import choose_routes
from dragoman.proxy.steps.read_body import read_body
from dragoman.tenancy.keys import KeyId
from dragoman.tenancy.limiter import Lease, Limiter, Used
from dragoman.tenancy.memory_meter import MemoryMeter
from dragoman.tenancy.policies import Policies
from dragoman.translate.hub.failure import Kind, RequestError
from proxy.steps.story_rig import StoryRig, new_call

BOTH = b'{"model":"both","messages":[{"role":"user","content":"Hi"}]}'


class LimitedRig(StoryRig):
    """A gateway in memory with these limits."""

    def __init__(self, settings: LimitSettings) -> None:
        super().__init__()
        policies = Policies()
        policies.adopt(settings, ())
        self.limiter = Limiter(MemoryMeter(None, lambda: ZoneInfo("UTC")), policies, time.time)
        self.gateway.limiter = self.limiter

    async def new_call(self, body: bytes = BOTH) -> Call:
        """Return a call that has come as far as the seat of limits."""
        call = new_call(body=body)
        await read_body(call, self.gateway.runtime)
        await choose_routes(call, self.gateway.runtime)
        call.apply_policy(self.limiter.policies.find(KeyId("")))
        return call

    async def admit(self) -> Lease:
        call = await self.new_call()
        await admit(self.gateway, call)
        assert call.lease is not None
        return call.lease


async def test_without_a_limit_a_call_takes_nothing() -> None:
    rig = LimitedRig(LimitSettings())
    call = await rig.new_call()
    await check_limits(rig.gateway, call)
    await admit(rig.gateway, call)
    assert call.lease is None
    rig.gateway.limiter = None  # there is no store, so that nothing can be limited
    await check_limits(rig.gateway, call)
    await admit(rig.gateway, call)
    assert call.lease is None


async def test_a_call_that_a_rate_refuses_says_when_to_come_again() -> None:
    rig = LimitedRig(LimitSettings(requests_per_min=1))
    call = await rig.new_call()
    await check_limits(rig.gateway, call)  # takes nothing
    await admit(rig.gateway, call)
    assert call.lease is not None
    assert (call.record.lease, call.lease.rates["requests"].remaining) == (call.lease, 0)
    for step in (admit, check_limits):
        with pytest.raises(RequestError, match="requests_per_min") as refused:
            await step(rig.gateway, await rig.new_call())
        assert refused.value.failure.kind is Kind.LIMITED
        assert 59 < (refused.value.failure.retry_after or 0) <= 63  # spread, so that clients do not come at once


async def test_a_target_whose_provider_has_no_room_is_left_out() -> None:
    rig = LimitedRig(LimitSettings(providers=(ProviderLimits(names=("up",), requests_per_min=1),)))
    calls = [await rig.new_call() for _ in range(2)]
    for call in calls:
        await admit(rig.gateway, call)
    assert [[str(route) for route in call.routes] for call in calls] == [["up/m", "other/m"], ["other/m"]]


async def test_a_slot_is_free_again_once_its_call_is_settled() -> None:
    rig = LimitedRig(LimitSettings(concurrent=1))
    lease = await rig.admit()
    with pytest.raises(RequestError, match="concurrent"):
        await rig.admit()
    lease.settle(Used(), "up")
    assert (await rig.admit()).id != lease.id


async def test_a_queued_call_waits_where_a_client_would_be_refused() -> None:
    rig = LimitedRig(LimitSettings(concurrent=1))
    lease, call, waits, is_waiting = await rig.admit(), await rig.new_call(), list[bool](), asyncio.Event()

    def record_wait(waiting: bool) -> None:
        waits.append(waiting)
        is_waiting.set()

    queued = asyncio.ensure_future(admit(rig.gateway, call, queued_s=60, on_wait=record_wait))
    await is_waiting.wait()
    lease.settle(Used(), "up")
    await queued
    assert (waits[0], waits[-1], call.lease is not None) == (True, False, True)


async def test_a_call_that_was_queued_for_too_long_is_refused_for_good() -> None:
    rig = LimitedRig(LimitSettings(requests_per_min=1))
    await rig.admit()
    with pytest.raises(RequestError, match=r"was queued for 0\.5 minutes") as refused:
        await admit(rig.gateway, await rig.new_call(), queued_s=30)
    assert refused.value.failure.kind is Kind.SPENT


async def test_the_story_settles_what_it_has_taken() -> None:
    rig = LimitedRig(LimitSettings(concurrent=1))
    for _ in range(2):
        sink, call = CollectorSink(), new_call(body=BOTH)
        call.apply_policy(rig.limiter.policies.find(KeyId("")))
        await serve(rig.services, call, sink)
        assert (sink.status, call.lease is not None) == (200, True)

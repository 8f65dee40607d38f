"""Admit a call under the limits of its key and its targets: the last step before an upstream is paid for."""

import asyncio
from functools import partial

from dragoman.net.body_threads import run_off_loop
from dragoman.proxy.accounts import charge_interrupted
from dragoman.proxy.call import Call
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.ports import PricedTarget
from dragoman.tenancy.limiter import AdmissionTarget, Demand, Lease, Limiter, OnWait
from dragoman.translate.framing.output_limits import find_output_limit
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.profiles.model_table import find_profile
from dragoman.translate.profiles.token_count import BYTES_PER_TOKEN, estimate_body_tokens
from dragoman.upstreams.routing import Route

QUEUED_S = 600.0  # how long a background response waits for a limit that will have room again
MIN_WAIT_S = 0.1


async def admit(gateway: Gateway, call: Call, *, queued_s: float = 0.0, on_wait: OnWait | None = None) -> None:
    """Take what the call needs of its limits, or wait in line for it. Raises RequestError if a limit refuses it.

    `queued_s`: seconds for which it waits even where a client would get a refusal with `retry-after`.
    `on_wait`: called with True when it begins to wait, and with False when it is admitted.
    """
    limiter = gateway.limiter
    if limiter is None or not limiter.policies.has_limits:
        return
    until = asyncio.get_running_loop().time() + queued_s
    while True:
        try:
            await _admit(gateway, limiter, call, on_wait)
        except RequestError as refused:
            failure = refused.failure
            if not queued_s or failure.kind is not Kind.LIMITED:
                raise
        else:
            if on_wait is not None:
                on_wait(False)
            return
        if on_wait is not None:
            on_wait(True)
        wait_s = max(MIN_WAIT_S, failure.retry_after or 0.0)
        if asyncio.get_running_loop().time() + wait_s > until:
            message = f"The response was queued for {queued_s / 60:g} minutes. {failure.message}"
            raise RequestError(Failure(Kind.SPENT, message))
        await asyncio.sleep(wait_s)


async def _admit(gateway: Gateway, limiter: Limiter, call: Call, on_wait: OnWait | None) -> None:
    lease = await _begin(limiter, call)
    if lease is None:
        return
    lease.on_wait = on_wait
    await limiter.admit(lease, partial(charge_interrupted, gateway.charges, call.record))
    call.lease = call.record.lease = lease  # the record settles it
    if len(lease.targets) < len(call.routes):  # limits of their providers have refused the others
        left = {target.route for target in lease.targets}
        call.routes = tuple(route for route in call.routes if str(route) in left)


async def check_limits(gateway: Gateway, call: Call) -> None:
    """Raise RequestError if a limit would refuse a call that is to be run later; nothing is taken."""
    limiter = gateway.limiter
    if limiter is None or not limiter.policies.has_limits:
        return
    lease = await _begin(limiter, call)
    if lease is not None:
        await limiter.check(lease)


async def _begin(limiter: Limiter, call: Call) -> Lease | None:
    policies = limiter.policies
    policy = policies.renew(call.caller.key, call.policy)  # it may have been queued for minutes
    if not policy.scopes and not any(policies.find_provider_scopes(route.provider) for route in call.routes):
        return None
    input_tokens, most = await run_off_loop(len(call.body), partial(_measure, call))
    targets = tuple(_make_target(call, route, input_tokens, most) for route in call.routes)
    demand = Demand(
        key=call.caller.key,
        policy=policy,
        targets=targets,
        input_tokens=input_tokens,
        max_tokens=most,
    )
    return limiter.begin(demand)


def _measure(call: Call) -> tuple[int, int | None]:
    """Return about how many tokens a call sends, with what it refers to, and how many it allows its reply."""
    body, ceiling = call.body, call.policy.max_output_tokens
    tokens = estimate_body_tokens(body, call.model) + max(0, call.size - len(body)) // BYTES_PER_TOKEN
    of_request = find_output_limit(body, call.client.output_limits) if body else None
    most = min((limit for limit in (of_request, ceiling) if limit is not None), default=None)
    return tokens, most


def _make_target(call: Call, route: Route, input_tokens: int, max_tokens: int | None) -> AdmissionTarget:
    runtime = call.runtime
    if runtime.prices is None:
        return AdmissionTarget(route.provider, route.model, None)
    if max_tokens is None:
        catalogue = runtime.catalogues.get(route.provider)
        listed = None if catalogue is None else catalogue.max_output(route.model)
        max_tokens = listed or find_profile(route.model).max_output
    priced = PricedTarget(route.provider, route.model, call.is_charged_by_tokens, call.caller.received_at)
    return AdmissionTarget(route.provider, route.model, runtime.prices.find_size(priced, input_tokens, max_tokens))

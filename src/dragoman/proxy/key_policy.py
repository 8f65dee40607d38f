"""What is set for a client key, applied to its requests: models, providers, and how much a reply may write."""

from collections.abc import Iterable
from functools import lru_cache, partial

from dragoman.config.limits import LimitName, Limits
from dragoman.net.body_threads import run_off_loop
from dragoman.proxy.call import Call
from dragoman.proxy.ports import PricedTarget
from dragoman.tenancy.policies import KeyPolicy, LimitedScope
from dragoman.translate.framing.output_limits import lower_output_limit
from dragoman.translate.hub.failure import UNKNOWN_MODEL, Failure, Kind, RequestError
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.routing import Route

SHOWN_GLOBS = 10
# No value: a line that is pasted as it is must not make the model free.
TOKEN_PRICES = "input = …  # dollars per million tokens\noutput = …  # dollars per million tokens"


@lru_cache(maxsize=1024)
def bounds_dollars(limits: Limits) -> bool:
    return any(name.is_usd for name, _ in limits.items())


@lru_cache(maxsize=1024)
def bounds_use(limits: Limits) -> bool:
    """Return whether limits bound what requests use or how many run, and not only how many begin."""
    return any(name is not LimitName.REQUESTS_PER_MIN for name, _ in limits.items())


def list_scopes(call: Call, route: Route) -> tuple[LimitedScope, ...]:
    """Return the scopes with limits that a call counts in if it goes to this target."""
    policies = call.runtime.policies
    return () if policies is None else (*call.policy.scopes, *policies.find_provider_scopes(route.provider))


def is_metered(call: Call) -> bool:
    """Return whether a limit counts what a call uses, or how long it runs, at any of its targets."""
    return any(bounds_use(scope.limits) for route in call.routes for scope in list_scopes(call, route))


def leave_out_unpriced(call: Call) -> None:
    """Leave out targets of unknown cost, under limits in dollars. Raises RequestError if none is left."""
    prices = call.runtime.prices
    at, kept = call.caller.received_at, list[Route]()
    for route in call.routes:
        target = PricedTarget(route.provider, route.model, call.is_charged_by_tokens, at)
        has_price = prices is not None and prices.find_size(target, 0, None) is not None
        if has_price or not any(bounds_dollars(scope.limits) for scope in list_scopes(call, route)):
            kept.append(route)
    if not kept:
        raise RequestError(_describe_unpriced(call.routes[0], call.is_charged_by_tokens))
    if len(kept) < len(call.routes):
        call.routes = tuple(kept)


def _describe_unpriced(route: Route, is_charged_by_tokens: bool) -> Failure:
    what = "input and output" if is_charged_by_tokens else "request"
    lines = TOKEN_PRICES if is_charged_by_tokens else f"{TOKEN_PRICES}\nrequest = …  # dollars each"
    message = (
        f"The model {str(route)!r} has no price here, and this key is under a limit in dollars. To allow it, add its "
        f'price ({what}) to dragoman.toml, as in:\n[[prices]]\nmodel = "{route}"\n{lines}'
    )
    return Failure(Kind.NOT_FOUND, message, code=UNKNOWN_MODEL, at="/model", should_retry=False)


def allow_routes(policy: KeyPolicy, name: str, routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return the targets of a name that a key may use."""
    return tuple(route for route in routes if policy.allows(name, route.provider, route.model))


def describe_forbidden(policy: KeyPolicy, name: str) -> Failure:
    """Return why a key gets no answer from a model that exists."""
    allowed = "; ".join(
        f"{what}: {', '.join(globs[:SHOWN_GLOBS])}{' …' if len(globs) > SHOWN_GLOBS else ''}"
        for what, globs in (
            ("models", policy.models),
            ("models of the team", policy.team_models),
            ("providers", policy.providers),
            ("providers of the team", policy.team_providers),
        )
        if globs
    )
    message = f"The model {name!r} is not allowed for this key. Allowed: {allowed}. GET /v1/models lists them."
    return Failure(Kind.NOT_FOUND, message, code=UNKNOWN_MODEL, at="/model", should_retry=False)


async def limit_output(body: bytes, call: Call, provider: Provider) -> bytes:
    """Return a body that passes with no higher output limit than its key allows."""
    most, paths = call.policy.max_output_tokens, call.client.output_limits
    if most is None or not paths:
        return body
    if "max_tokens" in provider.requests.quirks:  # the server does not know OpenAI's newer name
        paths = paths[::-1]
    return await run_off_loop(len(body), partial(lower_output_limit, body, paths, most))

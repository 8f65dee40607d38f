"""A provider comes in; its credentials are asked in turn until one answers, and what they say of rests is kept."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from dragoman.accounts.pool import EVERYTHING
from dragoman.flow.attempt import AFTER, TOLD_FIRST
from dragoman.flow.call import Call
from dragoman.flow.offload import run_off_loop
from dragoman.flow.open import Streaming, Whole
from dragoman.flow.session import response_name, session_of, tenant_session
from dragoman.hub.failure import Failure, Kind, Refused
from dragoman.providers.provider import Provider
from dragoman.routing.resolve import Route

log = logging.getLogger(__name__)

SPENT = "spent"
PASSING = (Kind.RATE_LIMITED.value, SPENT)  # reasons to leave a credential alone that pass by themselves

Reply = TypeVar("Reply", bound=Whole | Streaming)


def awake(routes: tuple[Route, ...], providers: Mapping[str, Provider]) -> tuple[Route, ...]:
    """The targets that may be asked now; all of them where all rest, for nobody is refused by hearsay."""
    if len(routes) == 1:
        return routes
    return tuple(route for route in routes if not _is_at_rest(route, providers)) or routes


def _is_at_rest(route: Route, providers: Mapping[str, Provider]) -> bool:
    provider = providers.get(route.provider)
    rests = None if provider is None else provider.rests
    return rests is not None and rests.is_at_rest(route.model, rests.clock())


async def ask_alone(provider: Provider, model: str, ask: Callable[[Provider], Awaitable[Reply]]) -> Reply:
    """A provider with one credential, one of several targets: its account, once used up, rests until it is not."""
    rests = provider.rests
    if rests is None:
        return await ask(provider)
    choice = rests.choose(None, model, (), rests.clock())
    assert choice is not None
    try:
        reply = await ask(provider)
    except Refused as refused:
        _learn_alone(provider, model, refused.failure)
        raise
    else:
        rests.served(choice.member, model)
        return reply
    finally:
        rests.left(choice)


async def go_round(
    call: Call,
    provider: Provider,
    model: str,
    ask: Callable[[Provider], Awaitable[Reply]],
    without: Collection[int] = (),  # whose credential has broken off this very reply
) -> Reply:
    """Raises the refusal that passes soonest, where no credential is accepted."""
    pool = provider.pool
    assert pool is not None

    def is_known(name: str) -> bool:
        return pool.home(tenant_session(call.tenant, name)) is not None

    named = await run_off_loop(len(call.body), lambda: session_of(call, is_known))
    session = tenant_session(call.tenant, named)
    refusals: dict[int, Refused] = {}
    try:
        while (choice := pool.choose(session, model, {*without, *refusals}, pool.clock())) is not None:
            seat = choice.member
            member = provider.members[seat]
            try:
                reply = await ask(member)
            except Refused as refused:
                learn(member, model, refused.failure)
                refusals[seat] = refused
                if not AFTER[refused.failure.kind].another:
                    raise
            else:
                pool.served(seat, model, session, tenant_session(call.tenant, _kept_upstream(reply)))
                _rest_if_spent(member, model, reply)
                return reply
            finally:
                pool.left(choice)
        if not refusals:
            raise Refused(Failure(Kind.QUOTA, f"No other credential of {provider.name} may be asked now."))
        now = pool.clock()
        told = min(refusals, key=lambda seat: (_rank(refusals[seat]), pool.free_at(seat, model, now)))
        soon = None if _rank(refusals[told]) == 0 else pool.awakes_at(model, PASSING, refusals, now)
        if soon is not None and soon < pool.free_at(told, model, now):
            message = (
                f"Of {provider.name}'s credentials some are refused, and others limited for {soon - now:.0f} s more."
            )
            raise Refused(Failure(Kind.RATE_LIMITED, message, status=429, retry_after=soon - now)) from refusals[told]
        raise refusals[told]
    finally:
        refusals.clear()  # their tracebacks hold this frame: only the collector would free them all


def rested(provider: Provider, model: str) -> Provider:
    """Whoever of several credentials may be asked now, for a question that belongs to no conversation."""
    pool = provider.pool
    return provider if pool is None else provider.members[pool.soonest(model, pool.clock())]


def learn(member: Provider, model: str, failure: Failure) -> None:
    """What a failure says of the credential that met with it."""
    pool, after = member.rests, AFTER[failure.kind]
    if pool is None or after.rest_s is None:
        return
    now = pool.clock()
    wait = _wait_s(failure, now)
    until = now + (after.rest_s if wait is None else wait)
    pool.park(member.seat, EVERYTHING if after.for_all else model, until, failure.kind.value, now)
    which = f", credential {member.credential}" if member.credential else ""
    log.info("provider %s%s: %s, it rests for %.0f s", member.name, which, failure.kind.value, until - now)


def _wait_s(failure: Failure, now: float) -> float | None:
    """How long to leave it alone, in the upstream's own words."""
    if failure.resets_at is not None and failure.resets_at > now:
        return failure.resets_at - now
    return failure.retry_after


def _learn_alone(provider: Provider, model: str, failure: Failure) -> None:
    """Only what its upstream says of the whole account, and until when: there is no other credential to be spared."""
    rests = provider.rests
    if rests is not None and AFTER[failure.kind].for_all and _wait_s(failure, rests.clock()) is not None:
        learn(provider, model, failure)


def learn_from_end(reply: Streaming) -> None:
    """A stream may break off because the allowance is used up."""
    member, failure = reply.prepared.provider, reply.watch.failure
    if failure is None:
        return
    if member.pool is None:
        _learn_alone(member, reply.prepared.route.model, failure)
    else:
        learn(member, reply.prepared.route.model, member.heed(failure))


def _rest_if_spent(member: Provider, model: str, reply: Whole | Streaming) -> None:
    """A good answer may say that it was the last one for a while."""
    pool = member.pool
    assert pool is not None
    now = pool.clock()
    headers = reply.headers if isinstance(reply, Whole) else reply.answer.headers
    until = member.spent_until(headers, now)
    if until is not None:
        pool.park(member.seat, model, until, SPENT, now)


def _kept_upstream(reply: Whole | Streaming) -> str | None:
    """Only a reply that passed as it came bears the id by which the upstream knows it."""
    started = reply.watch.started
    return response_name(started.id) if started is not None and reply.prepared.passthrough else None


def _rank(refused: Refused) -> int:
    kind = refused.failure.kind
    return TOLD_FIRST.index(kind) if kind in TOLD_FIRST else len(TOLD_FIRST)

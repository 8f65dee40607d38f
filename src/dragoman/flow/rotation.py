"""A provider with several credentials comes in; they are asked in turn until one answers, and what they say is kept."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dragoman.accounts.pool import EVERYTHING
from dragoman.flow.attempt import AFTER, TOLD_FIRST
from dragoman.flow.call import Call
from dragoman.flow.open import Streaming, Whole
from dragoman.flow.session import response_name, session_of
from dragoman.hub.failure import Failure, Refused
from dragoman.providers.provider import Provider

log = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=Whole | Streaming)


async def go_round(call: Call, provider: Provider, model: str, ask: Callable[[Provider], Awaitable[Reply]]) -> Reply:
    """Raises the refusal that passes soonest, where no credential is accepted."""
    pool = provider.pool
    assert pool is not None
    session = session_of(call, lambda name: pool.home(name) is not None)
    refusals: dict[int, Refused] = {}
    while (choice := pool.choose(session, model, refusals, pool.clock())) is not None:
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
            pool.served(seat, model, session, _kept_upstream(reply))
            _rest_if_spent(member, model, reply)
            return reply
        finally:
            pool.left(choice)
    now = pool.clock()
    told = min(refusals, key=lambda seat: (_rank(refusals[seat]), pool.free_at(seat, model, now)))
    raise refusals[told]


def rested(provider: Provider, model: str) -> Provider:
    """Whoever of several credentials may be asked now, for a question that belongs to no conversation."""
    pool = provider.pool
    if pool is None:
        return provider
    now = pool.clock()
    return min(provider.members, key=lambda member: pool.free_at(member.seat, model, now))


def learn(member: Provider, model: str, failure: Failure) -> None:
    """What a failure says of the credential that met with it."""
    pool, after = member.pool, AFTER[failure.kind]
    if pool is None or after.rest_s is None:
        return
    now = pool.clock()
    until = now + (after.rest_s if failure.retry_after is None else failure.retry_after)
    if failure.resets_at is not None and failure.resets_at > now:
        until = failure.resets_at
    pool.park(member.seat, EVERYTHING if after.for_all else model, until, failure.kind.value, now)
    what = (member.name, member.credential, failure.kind.value, until - now)
    log.info("provider %s, credential %s: %s, it rests for %.0f s", *what)


def learn_from_end(reply: Streaming) -> None:
    """A stream may break off because the allowance is used up."""
    member, failure = reply.prepared.provider, reply.watch.failure
    if member.pool is not None and failure is not None:
        learn(member, reply.prepared.route.model, member.heed(failure))


def _rest_if_spent(member: Provider, model: str, reply: Whole | Streaming) -> None:
    """A good answer may say that it was the last one for a while."""
    pool = member.pool
    assert pool is not None
    now = pool.clock()
    headers = reply.headers if isinstance(reply, Whole) else reply.answer.headers
    until = member.spent_until(headers, now)
    if until is not None:
        pool.park(member.seat, model, until, "spent", now)


def _kept_upstream(reply: Whole | Streaming) -> str | None:
    """Only a reply that passed as it came bears the id by which the upstream knows it."""
    started = reply.watch.started
    return response_name(started.id) if started is not None and reply.prepared.passthrough else None


def _rank(refused: Refused) -> int:
    kind = refused.failure.kind
    return TOLD_FIRST.index(kind) if kind in TOLD_FIRST else len(TOLD_FIRST)

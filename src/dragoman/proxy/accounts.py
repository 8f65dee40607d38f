"""What a request under limits is charged: while it runs, at its end, and if its process dies."""

import math
from typing import Protocol

from msgspec.structs import replace

from dragoman.proxy.call import Call
from dragoman.proxy.outcome import OK, Outcome, TurnUsage
from dragoman.proxy.ports import PriceList
from dragoman.proxy.request_record import RequestRecord
from dragoman.tenancy.limiter import Lease, Used
from dragoman.translate.hub.usage import Usage, UsageSource
from dragoman.upstreams.routing import Route

MAX_COST_NANO = 10**15  # of one request
NANO = 10**9
NO_USAGE = Usage()
CHARACTERS_PER_TOKEN = 2  # at least, of what tools return
INTERRUPTED = "interrupted"  # the outcome of a request whose process died


class Charges(Protocol):
    """Encodes what a request has used, so that others can write its row."""

    def encode(self, outcome: Outcome) -> bytes: ...


def charge_interrupted(charges: Charges | None, record: RequestRecord, lease: Lease) -> bytes:
    """Return what is charged if this process dies before the request ends: all that it has reserved."""
    if charges is None:
        return b""
    target = lease.targets[0]
    usage = Usage(source=UsageSource.ESTIMATED)
    outcome = replace(
        record.outcome(),
        provider=target.provider,
        model=target.model,
        outcome=INTERRUPTED,
        lease=lease.id,
        usage=usage,
        charged_nano=lease.reserved_nano,
    )
    return charges.encode(outcome)


def correct(call: Call, route: Route, usage: Usage | None) -> None:
    """Raise what a request has reserved to what it is known to have used: its upstream has reported the input."""
    lease, prices, record = call.lease, call.runtime.prices, call.record
    if lease is None or usage is None or prices is None or usage.source is UsageSource.ESTIMATED:
        return
    turns = (*record.earlier_turns, TurnUsage(route.provider, route.model, usage))
    costs = [prices.price_turn(turn, record.started_at) or 0 for turn in turns]
    lease.correct(Used(sum(costs), sum(_count_tokens(turn.usage) for turn in turns)))


async def reserve_turn(lease: Lease | None, used: Usage, more_text: int = 0) -> bool:
    """Reserve the worst case of a further upstream request of a reply, where budgets are strict.

    `used` is what the one before it has used, `more_text` the characters that are added to its input. Returns False if
    there is no room: then the reply ends as at its token limit.
    """
    if lease is None:
        return True
    return await lease.reserve_turn(used.input + used.output + more_text // CHARACTERS_PER_TOKEN)


def settle(prices: PriceList | None, charges: Charges | None, record: RequestRecord, lease: Lease) -> None:
    """End the lease of a request that ends with what its usage row will say. This does not wait."""
    record.end()
    outcome = record.outcome()
    cost = None if prices is None else prices.cost_nano(outcome)
    if cost is None and outcome.usage is None and outcome.outcome == OK and outcome.is_answered and lease.reserved_nano:
        cost = lease.reserved_nano  # nothing says what a successful request has used
        outcome.usage = Usage(source=UsageSource.ESTIMATED)
    outcome.charged_nano = None if cost is None else min(max(cost, 0), MAX_COST_NANO)
    record.keep_outcome(outcome)
    usage = outcome.usage or NO_USAGE
    used = Used(outcome.charged_nano or 0, _count_tokens(usage), _count_credits(usage))
    charge = charges.encode(outcome) if charges is not None and lease.keeps_charge else b""
    lease.settle(used, find_provider(outcome), charge)
    if outcome.charged_nano and outcome.provider:
        lease.record_cost(outcome.route, outcome.charged_nano)


def find_provider(outcome: Outcome) -> str:
    """Return the provider that the row of an outcome names: the one that answered, else the last one that was asked."""
    if outcome.provider or not outcome.failed_attempts:
        return outcome.provider
    return outcome.failed_attempts[-1].route.partition("/")[0]


def _count_tokens(usage: Usage) -> int:
    """Return the tokens that limits count, as they are read from rows."""
    return max(0, usage.input - usage.cache_read + usage.output)


def _count_credits(usage: Usage) -> int:
    credits = usage.credits
    return round(credits * NANO) if credits is not None and math.isfinite(credits) and credits > 0 else 0

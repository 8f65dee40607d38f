"""The refusals of limits: which limit it is, whose it is, and when it has room again."""

import math
from collections.abc import Callable
from datetime import datetime, tzinfo

from dragoman.config.limits import LimitName, format_amount
from dragoman.store.meter import Hold, HoldKind, Refused
from dragoman.translate.hub.failure import UNKNOWN_USE, Failure, Kind

MAX_RATE_WAIT_S = 60.0
MIN_SLOT_WAIT_S, MAX_SLOT_WAIT_S = 1.0, 5.0
MIN_BUDGET_WAIT_S, MAX_BUDGET_WAIT_S = 15.0, 60.0
UNREACHABLE_WAIT_S = 5.0

Spread = Callable[[float, float], float]  # a time between two others, so that clients do not come back all at once


def describe_wait(name: LimitName, title: str, hold: Hold, refused: Refused) -> Failure:
    """Return the refusal of a rate or of slots."""
    wait_s = refused.wait_ms / 1000
    if hold.kind is HoldKind.SLOT:
        wait_s = min(max(wait_s, MIN_SLOT_WAIT_S), MAX_SLOT_WAIT_S)
    wait_s = min(wait_s, MAX_RATE_WAIT_S)
    message = f"The limit {_format_limit(name, hold.limit)} of {title} is reached. Try again in {_round(wait_s)} s."
    return Failure(Kind.LIMITED, message, retry_after=wait_s)


def describe_reserved(name: LimitName, title: str, hold: Hold, refused: Refused, spread: Spread) -> Failure:
    """Return the refusal of a request that waited in vain for what others have reserved."""
    wait_s = spread(MIN_BUDGET_WAIT_S, MAX_BUDGET_WAIT_S)
    limit, why = _format_limit(name, hold.limit), "running requests have reserved the rest"
    if refused.reserved:  # else it stood behind others in line, and never asked
        spent, reserved = _format(name, refused.spent), _format(name, refused.reserved)
        why = f"{spent} is spent, and running requests have reserved {reserved}"
    message = f"The limit {limit} of {title} is almost spent: {why}. Try again in {_round(wait_s)} s."
    return Failure(Kind.LIMITED, message, retry_after=wait_s)


def describe_spent(
    name: LimitName, title: str, hold: Hold, refused: Refused, resets_at: float | None, zone: tzinfo
) -> Failure:
    """Return the refusal of a limit that has no room until `resets_at` (Unix seconds; None: for ever)."""
    limit = _format_limit(name, hold.limit)
    if hold.limit == 0:
        return Failure(Kind.SPENT, f"The limit {limit} of {title} allows nothing. Ask whoever set it to raise it.")
    when = _describe_reset(resets_at, zone)
    if refused.spent < hold.limit:
        message = (
            f"This request may cost {_format(name, hold.amount)}, and of the limit {limit} of {title} "
            f'{_format(name, hold.limit - refused.spent)} are left: it does not fit (limits.budget = "strict"). '
            f"Allow fewer output tokens, or send less. {when}"
        )
        return Failure(Kind.SPENT, message)
    return Failure(Kind.SPENT, f"The limit {limit} of {title} is spent ({_format(name, refused.spent)}). {when}")


def describe_unreachable() -> Failure:
    """Return the refusal while it is not known how much of the limits is left."""
    message = (
        "The gateway cannot reach the counters of its limits, so it does not admit this request. "
        f"Try again in {UNREACHABLE_WAIT_S:g} s."
    )
    return Failure(Kind.LIMITED, message, code=UNKNOWN_USE, retry_after=UNREACHABLE_WAIT_S)


def describe_backlog() -> Failure:
    """Return the refusal while the usage of too many requests is not stored yet."""
    message = (
        "Too many usage rows wait to be stored, so no more requests are admitted under limits. "
        f"Try again in {UNREACHABLE_WAIT_S:g} s."
    )
    return Failure(Kind.LIMITED, message, code=UNKNOWN_USE, retry_after=UNREACHABLE_WAIT_S)


def _describe_reset(resets_at: float | None, zone: tzinfo) -> str:
    if resets_at is None:
        return "It never resets. Ask whoever set it to raise it."
    moment = datetime.fromtimestamp(resets_at, zone)
    return f"It resets on {moment:%Y-%m-%d} at {moment:%H:%M} ({zone})."


def _format_limit(name: LimitName, amount: int) -> str:
    return f"{name.value} = {format_amount(name, amount)}"


def _format(name: LimitName, amount: int) -> str:
    if name.is_usd:
        return f"${amount / 10**9:.4f}".rstrip("0").rstrip(".")
    unit = name.value.partition("_")[0]
    return f"{format_amount(name, amount)} {unit}"


def _round(seconds: float) -> str:
    """Return a time that is not shorter, and short to read."""
    return f"{math.ceil(seconds * 1000) / 1000:g}" if seconds < 1 else f"{math.ceil(seconds)}"

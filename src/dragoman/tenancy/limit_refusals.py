"""The refusals of limits: which limit it is, whose it is, and when it has room again."""

import math
from collections.abc import Callable
from datetime import datetime, tzinfo

from msgspec import Struct

from dragoman.config.limits import LimitName, format_amount
from dragoman.store.meter import Hold, HoldKind, Refused
from dragoman.tenancy.limit_parts import LimitPart
from dragoman.translate.hub.failure import UNKNOWN_USE, Failure, Kind

MAX_RATE_WAIT_S = 60.0
MIN_SLOT_WAIT_S, MAX_SLOT_WAIT_S = 1.0, 5.0
MIN_BUDGET_WAIT_S, MAX_BUDGET_WAIT_S = 15.0, 60.0
UNREACHABLE_WAIT_S = 5.0

Spread = Callable[[float, float], float]  # a time between two others, so that clients do not come back all at once


class RefusedBy(Struct, frozen=True):
    part: LimitPart
    hold: Hold
    result: Refused


def describe_refusal(refused: RefusedBy, zone: tzinfo, spread: Spread) -> Failure:
    """Return the refusal by a limit; `zone` is that of its resets."""
    if refused.result.is_spent or refused.hold.limit == 0:
        return _describe_spent(refused, zone)
    return _describe_reserved(refused, spread) if refused.result.waits else _describe_wait(refused)


def _describe_wait(refused: RefusedBy) -> Failure:
    """Return the refusal of a rate or of slots."""
    wait_s = refused.result.wait_ms / 1000
    if refused.hold.kind is HoldKind.SLOT:
        wait_s = min(max(wait_s, MIN_SLOT_WAIT_S), MAX_SLOT_WAIT_S)
    wait_s = min(wait_s, MAX_RATE_WAIT_S)
    message = f"The limit {_name_limit(refused)} is reached. Try again in {_round(wait_s)} s."
    return Failure(Kind.LIMITED, message, retry_after=wait_s)


def _describe_reserved(refused: RefusedBy, spread: Spread) -> Failure:
    """Return the refusal of a request that waited too long for what others have reserved."""
    name, result, wait_s = refused.part.name, refused.result, spread(MIN_BUDGET_WAIT_S, MAX_BUDGET_WAIT_S)
    why = "running requests have reserved the rest"
    if result.reserved:  # else it stood behind others in line, and never asked
        spent, reserved = _format(name, result.spent), _format(name, result.reserved)
        why = f"{spent} is spent, and running requests have reserved {reserved}"
    message = f"The limit {_name_limit(refused)} is almost spent: {why}. Try again in {_round(wait_s)} s."
    return Failure(Kind.LIMITED, message, retry_after=wait_s)


def _describe_spent(refused: RefusedBy, zone: tzinfo) -> Failure:
    """Return the refusal of a limit that has no room until its window ends."""
    part, hold, spent, limit = refused.part, refused.hold, refused.result.spent, _name_limit(refused)
    if hold.limit == 0:
        return Failure(Kind.SPENT, f"The limit {limit} allows nothing. Ask whoever set it to raise it.")
    when = _describe_reset(part.end_ms, zone)
    if spent < hold.limit:
        message = (
            f"This request may cost {_format(part.name, hold.amount)}, but only "
            f"{_format(part.name, hold.limit - spent)} of the limit {limit} is left "
            f'(limits.budget = "strict"). Allow fewer output tokens, or send less. {when}'
        )
        return Failure(Kind.SPENT, message)
    return Failure(Kind.SPENT, f"The limit {limit} is spent ({_format(part.name, spent)}). {when}")


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


def _describe_reset(end_ms: int | None, zone: tzinfo) -> str:
    if end_ms is None:
        return "It never resets. Ask whoever set it to raise it."
    moment = datetime.fromtimestamp(end_ms / 1000, zone)
    return f"It resets on {moment:%Y-%m-%d} at {moment:%H:%M} ({zone})."


def _name_limit(refused: RefusedBy) -> str:
    part = refused.part
    return f"{part.name.value} = {format_amount(part.name, refused.hold.limit)} of {part.scope.title}"


def _format(name: LimitName, amount: int) -> str:
    if name.is_usd:
        return f"${amount / 10**9:.4f}".rstrip("0").rstrip(".")
    unit = name.value.partition("_")[0]
    return f"{format_amount(name, amount)} {unit}"


def _round(seconds: float) -> str:
    """Return a time that is not shorter, and short to read."""
    return f"{math.ceil(seconds * 1000) / 1000:g}" if seconds < 1 else f"{math.ceil(seconds)}"

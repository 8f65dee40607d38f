"""Limits per minute: a bucket that holds one minute's worth, filled evenly (GCRA for requests, tokens alike).

Whole numbers, so that every meter gives the same answers: a level counts 60,000ths of a request or token. As many of
them as the limit come in each millisecond.
"""

from msgspec import Struct

UNITS = 60_000  # of a level, in one request or token


class Bucket(Struct, gc=False):
    """What is left of a rate. The level is negative after a request that was larger than the bucket."""

    level: int  # in UNITS
    at_ms: int  # when it had this level, by a clock that is always the same one


def make_bucket(limit: int, now_ms: int) -> Bucket:
    """Return a full bucket."""
    return Bucket(limit * UNITS, now_ms)


def fill(bucket: Bucket, limit: int, now_ms: int) -> None:
    """Add what came in since; more than a full bucket is cut. A clock that was set back adds nothing."""
    level, passed_ms, full = bucket.level, now_ms - bucket.at_ms, limit * UNITS
    if passed_ms > 0:  # without `max` and `min`: every request under limits pays for this
        level += passed_ms * limit
    bucket.level = level if level < full else full
    bucket.at_ms = now_ms


def change_limit(bucket: Bucket, before: int, limit: int) -> None:
    """Give a filled bucket another limit: what was taken stays so, at most all of the new limit and older debts."""
    bucket.level = max(bucket.level + (limit - before) * UNITS, min(bucket.level, 0))


def find_wait_ms(bucket: Bucket, limit: int, amount: int) -> int:
    """Return how long until `amount` may be taken, 0: now. A request larger than the bucket needs a full one.

    The bucket must have been filled, and the limit must not be 0, of which nothing may ever be taken.
    """
    missing = (amount if amount < limit else limit) * UNITS - bucket.level
    return -(-missing // limit) if missing > 0 else 0


def take(bucket: Bucket, amount: int) -> None:
    """Take an amount, which may leave a debt; a negative one is given back."""
    bucket.level -= amount * UNITS


def count_left(bucket: Bucket) -> int:
    """Return how many whole requests or tokens are left; negative: how many are owed."""
    return bucket.level // UNITS

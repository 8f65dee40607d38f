"""Usage over time, in hours or days of a time zone, and the speed of each route."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct
from msgspec.structs import replace

from dragoman.operate import InvalidArgument
from dragoman.operate.usage.reports import limit_sums, make_query
from dragoman.store import Store
from dragoman.store.rollup import DAY_MS, HOUR_MS, SumQuery, bucket_ms, merge
from dragoman.store.usage_rows import SLOT_MS, UsageSpan, UsageSum

Step = Literal["quarter", "hour", "day", "all"]
STEP_MS: dict[Step, int] = {"quarter": SLOT_MS, "hour": HOUR_MS, "day": DAY_MS, "all": 0}
EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)  # no gateway is older, so changes of the clock before are of no interest


class TimeSteps(Struct, frozen=True):
    """How a time is divided: the hours and days of a zone, whose changes of the clock are looked up until now."""

    step: Step
    zone: ZoneInfo
    now: datetime


class ConstantOffset(Struct, frozen=True):
    """A part of a time during which the clock of a zone is so far ahead of UTC."""

    since_ms: int
    until_ms: int
    offset_ms: int


class RouteSpeed(Struct, frozen=True):
    """How fast a route answers; the percentiles are within 5 %. `tokens_per_s` counts from the first token on."""

    route: str
    requests: int  # those whose time to the first token is known
    ttft_p50_ms: int
    ttft_p95_ms: int
    tokens_per_s: float | None


def find_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidArgument(f"{name[:80]!r} is not a known time zone, such as Europe/Berlin or UTC.") from None


async def read_series(store: Store, span: UsageSpan, by: str, steps: TimeSteps) -> tuple[UsageSum, ...]:
    """Return one sum for each group and step; `slot` is the quarter of an hour in which the step begins."""
    step, zone = steps.step, steps.zone
    query = limit_sums(make_query(span, by, STEP_MS[step]))
    if step in ("quarter", "all"):
        return await store.read_usage_sums(query)
    parts: list[UsageSum] = []
    for part in split_at_offsets(span.since_ms, span.until_ms, zone, steps.now):
        found = await store.read_usage_sums(_restrict(query, part))
        parts += found if step == "hour" else _begin_at_midnight(found, part.offset_ms, zone)
    return merge(parts)


def _begin_at_midnight(days: Iterable[UsageSum], offset_ms: int, zone: ZoneInfo) -> Iterator[UsageSum]:
    """Yield days that begin when they really did: on the day of a change, the clock had another offset before it."""
    starts: dict[int, int] = {}
    for found in days:
        if found.slot not in starts:
            moment = datetime.fromtimestamp((found.slot * SLOT_MS + offset_ms) / 1000, UTC)
            midnight = datetime(moment.year, moment.month, moment.day, tzinfo=zone)
            starts[found.slot] = int(midnight.timestamp() * 1000) // SLOT_MS
        yield replace(found, slot=starts[found.slot])


async def read_speed(store: Store, span: UsageSpan) -> list[RouteSpeed]:
    """Return the speed of every route, the most used first; the time is rounded to quarters of an hour."""
    counts = await store.read_ttft_counts(make_query(span, "model", 0))
    sums = {part.group: part for part in await store.read_usage_sums(make_query(span, "model", 0))}
    speeds = [_describe(route, buckets, sums.get(route)) for route, buckets in counts.items()]
    return sorted(speeds, key=lambda speed: (-speed.requests, speed.route))


def find_percentile(buckets: Mapping[int, int], share: float) -> int:
    """Return the time in milliseconds within which this share of requests had its first token."""
    left = share * sum(buckets.values())
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        if left <= 0:
            return bucket_ms(bucket)
    raise ValueError("there are no requests")


def split_at_offsets(since_ms: int, until_ms: int, zone: ZoneInfo, now: datetime) -> Iterator[ConstantOffset]:
    """Split a time where the clock of a zone is changed, to the quarter of an hour."""
    latest = now + timedelta(days=2)
    first = max(since_ms, int(EARLIEST.timestamp() * 1000))
    end = min(until_ms, int(latest.timestamp() * 1000))
    start, offset = since_ms, _offset_ms(first, zone)
    for at in range(first // DAY_MS * DAY_MS + DAY_MS, end + DAY_MS, DAY_MS):
        if _offset_ms(at, zone) == offset:
            continue
        change = _find_change(at - DAY_MS, at, zone)
        if start < change < until_ms:
            yield ConstantOffset(start, change, offset)
            start = change
        offset = _offset_ms(at, zone)
    yield ConstantOffset(start, until_ms, _offset_ms(max(start, first), zone))


def _restrict(query: SumQuery, part: ConstantOffset) -> SumQuery:
    return replace(query, since_ms=part.since_ms, until_ms=part.until_ms, offset_ms=part.offset_ms)


def _find_change(low: int, high: int, zone: ZoneInfo) -> int:
    while high - low > SLOT_MS:
        middle = (low + high) // 2 // SLOT_MS * SLOT_MS
        low, high = (middle, high) if _offset_ms(middle, zone) == _offset_ms(low, zone) else (low, middle)
    return high


def _offset_ms(at_ms: int, zone: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(at_ms / 1000, zone).utcoffset() or timedelta()
    return int(offset.total_seconds() * 1000) // SLOT_MS * SLOT_MS


def _describe(route: str, buckets: Mapping[int, int], total: UsageSum | None) -> RouteSpeed:
    is_timed = total is not None and total.generating_ms > 0
    return RouteSpeed(
        route,
        sum(buckets.values()),
        find_percentile(buckets, 0.5),
        find_percentile(buckets, 0.95),
        round(total.generated_tokens * 1000 / total.generating_ms, 1) if total is not None and is_timed else None,
    )

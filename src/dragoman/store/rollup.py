"""Sums of usage by quarter of an hour, hour and day (UTC), kept beside the rows so that no query has to add those up.

Every row is counted under several dimensions: all, model, key, client, user and team for all keys (user and team where
there is one), and model and client for the key that made the request.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from operator import add, attrgetter, neg
from typing import Literal

from msgspec import Struct
from msgspec.structs import astuple, fields, replace

from dragoman.store.usage_rows import COLUMNS, SLOT_MS, GroupBy, UsageRow, UsageSum, add_sums, time_of_id

HOUR_MS = 4 * SLOT_MS
DAY_MS = 24 * HOUR_MS
LEVELS = (DAY_MS, HOUR_MS, SLOT_MS)
EVERYBODY = "*"  # the owner of sums over all keys
MAX_SUM = 9 * 10**18  # what a column holds; more than that is not counted

SUMS = tuple(field.name for field in fields(UsageSum) if field.name not in ("group", "slot"))
BUCKETS_PER_DOUBLING = 8  # of the time to the first token: a bucket is 9 % wide

Dimension = Literal["all", "model", "key", "client", "user", "team"]
WITHOUT_NONE: tuple[GroupBy, ...] = ("user", "team")  # dimensions that do not count rows without one


class RollupKey(Struct, frozen=True, order=True):
    """Which sum: `slot` counts units of `level` milliseconds since the epoch."""

    dimension: str
    owner: str
    level: int
    slot: int
    grouped: str


class TtftKey(Struct, frozen=True, order=True):
    """How many requests of a route had their first token in about the same time."""

    owner: str
    level: int
    slot: int
    route: str
    bucket: int


SUM_KEY = ", ".join(RollupKey.__struct_fields__)  # the columns, in the order of the tables
TTFT_KEY = ", ".join(TtftKey.__struct_fields__)


class Rollup(Struct, frozen=True):
    """What some rows add to the sums, each in the order of SUMS; sorted, so that two writers never deadlock."""

    sums: list[tuple[RollupKey, list[float]]]
    ttft: list[tuple[TtftKey, int]]


class SumQuery(Struct, frozen=True):
    """Which sums to read. With `step_ms` 0 there is one for each group, else one for each group and step.

    Steps of a day begin at midnight of a clock that is `offset_ms` ahead of UTC.
    """

    since_ms: int
    until_ms: int
    key: str | None = None  # only requests of this key, of this team, of this user and to this provider
    by: GroupBy = "all"
    step_ms: int = SLOT_MS
    offset_ms: int = 0
    team: str | None = None
    tag: str = ""  # by the values of this tag, if `by` is tag
    user: str | None = None
    provider: str | None = None
    most: int | None = None  # sums of each part of the time, where an answer with more is of no use


class RollupPart(Struct, frozen=True):
    """Slots of one level."""

    level: int
    first: int
    end: int


class DaysPart(Struct, frozen=True):
    """Whole UTC days, each counted in the day of the clock that has most of it."""

    first: int
    end: int


class MovedPart(Struct, frozen=True):
    """Slots within such days that belong to the day before or after, by a clock that is not UTC: level and slot."""

    slots: list[tuple[int, int]]


class RowsPart(Struct, frozen=True):
    """Less than a quarter of an hour, of which the rows are added up."""

    since_ms: int
    until_ms: int


TimePart = RollupPart | DaysPart | MovedPart | RowsPart


_Group = tuple[int, str, str, str, str, str, str]


def roll_up(rows: Iterable[UsageRow], sign: int = 1) -> Rollup:
    """Return what these rows add to the sums; with the sign -1, what their removal subtracts."""
    groups: defaultdict[_Group, list[UsageRow]] = defaultdict(list)
    for row in rows:
        slot = row.time_ms // SLOT_MS
        groups[slot, row.key, row.client, row.provider, row.model, row.user, row.team].append(row)
    sums: dict[RollupKey, list[float]] = {}
    counts: dict[TtftKey, int] = {}
    for (slot, key, client, provider, model, user, team), group in groups.items():
        route = f"{provider}/{model}"
        values = _add_up(group)
        for rollup_key in chain(_sum_keys(slot, key, client, route), _sum_keys_of_team(slot, user, team)):
            sums[rollup_key] = list(map(add, sums[rollup_key], values)) if rollup_key in sums else values
        for ttft_ms, number in Counter(map(_get_ttft, group)).items():
            for ttft_key in () if ttft_ms is None else _ttft_keys(slot, key, route, find_bucket(ttft_ms)):
                counts[ttft_key] = counts.get(ttft_key, 0) + number
    return Rollup(
        [(key, _bound(values, sign)) for key, values in sorted(sums.items())],
        [(key, sign * number) for key, number in sorted(counts.items())],
    )


def _bound(values: list[float], sign: int) -> list[float]:
    return values if sign == 1 and max(values) <= MAX_SUM else [sign * min(value, MAX_SUM) for value in values]


@lru_cache(maxsize=4096)
def find_bucket(ttft_ms: int) -> int:
    return round(math.log2(max(1, ttft_ms)) * BUCKETS_PER_DOUBLING)


def bucket_ms(bucket: int) -> int:
    """Return the time in the middle of a bucket."""
    return round(2 ** (bucket / BUCKETS_PER_DOUBLING))


def find_dimension(query: SumQuery) -> tuple[Dimension, str] | None:
    """Return the dimension and the owner of the sums of a query; None if there are none: rows are added up.

    The provider is the first part of a model's group.
    """
    if query.provider is not None:
        return None
    by, key = query.by, query.key
    named: tuple[tuple[Dimension, str | None], ...] = (("team", query.team), ("user", query.user))
    limited = [dimension for dimension, name in named if name is not None]
    if limited:
        return (limited[0], EVERYBODY) if key is None and len(limited) == 1 and by in ("all", limited[0]) else None
    if by in ("all", "key") and key is not None:
        return "key", EVERYBODY  # only the group of that key is read
    owner = EVERYBODY if key is None else key
    match by:
        case "model" | "provider":
            return "model", owner
        case "all" | "key" | "client":
            return by, owner
        case "user" | "team" if key is None:
            return by, owner
    return None


def cover(query: SumQuery) -> Iterator[TimePart]:
    """Cover the time of a query with as few slots as its steps allow, or with its rows if there are no sums of it."""
    if find_dimension(query) is None:
        yield from [RowsPart(query.since_ms, query.until_ms)] if query.since_ms < query.until_ms else ()
        return
    levels = [level for level in LEVELS if query.step_ms % level == 0 and query.offset_ms % level == 0]
    if not query.step_ms:
        levels = list(LEVELS)
    if query.step_ms == DAY_MS and query.offset_ms:
        yield from _cover_days(query, levels)
    else:
        yield from _cover(query.since_ms, query.until_ms, levels)


def start_of_step(query: SumQuery, part: TimePart) -> str:
    """Return the SQL expression, over `began_ms`, of the quarter of an hour in which the step begins."""
    if not query.step_ms:
        return f"{query.since_ms // SLOT_MS:d}"
    step, offset = query.step_ms, query.offset_ms
    later = -offset if isinstance(part, DaysPart) and offset < 0 else 0  # the day begins before the UTC day does
    return f"((began_ms + {later + offset:d}) / {step:d} * {step:d} - {offset:d}) / {SLOT_MS:d}"


def clip(query: SumQuery, first: bytes | None, last: bytes | None) -> SumQuery:
    """Return the query with no more time than there is from the first row to the last; ids are None without rows."""
    if first is None or last is None:
        return replace(query, until_ms=query.since_ms)
    since, until = max(query.since_ms, time_of_id(first)), min(query.until_ms, time_of_id(last) + 1)
    return replace(query, since_ms=since, until_ms=until)


def widen(query: SumQuery) -> SumQuery:
    """Return the query with whole quarters of an hour."""
    start, end = query.since_ms // SLOT_MS * SLOT_MS, -(-query.until_ms // SLOT_MS) * SLOT_MS
    return replace(query, since_ms=start, until_ms=end)


def cover_ttft(query: SumQuery) -> Iterator[tuple[str, int, int, int]]:
    """Yield owner, level, first and end of the slots that have the times to the first token of a query."""
    owner = EVERYBODY if query.key is None else query.key
    for part in cover(replace(widen(query), step_ms=0)):
        if isinstance(part, RollupPart):
            yield owner, part.level, part.first, part.end


def add_ttft_counts(rows: Iterable[tuple[str, int, int]]) -> dict[str, dict[int, int]]:
    """Add up numbers of requests by route and bucket."""
    counts: dict[str, dict[int, int]] = {}
    for route, bucket, number in rows:
        known = counts.setdefault(route, {})
        known[bucket] = known.get(bucket, 0) + number
    return counts


def merge(parts: Iterable[UsageSum]) -> tuple[UsageSum, ...]:
    """Add up the sums of the same group and slot, and sort them; what adds up to nothing is left out."""
    merged: dict[tuple[str, int], UsageSum] = {}
    for part in parts:
        key = (part.group, part.slot)
        merged[key] = add_sums(merged[key], part) if key in merged else part
    return tuple(merged[key] for key in sorted(merged) if merged[key].requests)


def count_rest(all_parts: Iterable[UsageSum], parts: Iterable[UsageSum]) -> Iterator[UsageSum]:
    """Yield what makes up the group without a name, in a dimension that does not count it: all without the others."""
    yield from all_parts
    for part in parts:
        _, slot, *values = astuple(part)
        yield UsageSum("", slot, *map(neg, values))


def take_back(part: UsageSum, query: SumQuery) -> UsageSum:
    """Return the negative sum for the day that wrongly counted this part, which belongs to the day beside it."""
    group, slot, *values = astuple(part)
    shift = -1 if query.offset_ms > 0 else 1
    return UsageSum(group, slot + shift * DAY_MS // SLOT_MS, *map(neg, values))


def _cover_days(query: SumQuery, levels: list[int]) -> Iterator[TimePart]:
    """Cover days that are not UTC's with those that are, and the hours by which they differ."""
    first, end = -(-query.since_ms // DAY_MS), query.until_ms // DAY_MS
    if end - first < 2:
        yield from _cover(query.since_ms, query.until_ms, levels)
        return
    yield from _cover(query.since_ms, first * DAY_MS, levels)
    yield DaysPart(first, end)
    moved = (DAY_MS - query.offset_ms, DAY_MS) if query.offset_ms > 0 else (0, -query.offset_ms)
    slots: list[tuple[int, int]] = []
    for part in _cover(*moved, [HOUR_MS, SLOT_MS]):
        assert isinstance(part, RollupPart)  # offsets are whole quarters of an hour
        in_day, of_day = DAY_MS // part.level, range(part.first, part.end)
        slots += [(part.level, day * in_day + slot) for day in range(first, end) for slot in of_day]
    yield MovedPart(slots)
    yield from _cover(end * DAY_MS, query.until_ms, levels)


def _cover(since_ms: int, until_ms: int, levels: list[int]) -> Iterator[RollupPart | RowsPart]:
    if since_ms >= until_ms:
        return
    if not levels:
        yield RowsPart(since_ms, until_ms)
        return
    level, *smaller = levels
    first, end = -(-since_ms // level), until_ms // level
    if first >= end:
        yield from _cover(since_ms, until_ms, smaller)
        return
    yield from _cover(since_ms, first * level, smaller)
    yield RollupPart(level, first, end)
    yield from _cover(end * level, until_ms, smaller)


def _sum_keys(slot: int, key: str, client: str, route: str) -> Iterator[RollupKey]:
    for level in LEVELS:
        at = slot * SLOT_MS // level
        yield RollupKey("all", EVERYBODY, level, at, "")
        yield RollupKey("key", EVERYBODY, level, at, key)
        for owner in (EVERYBODY, key):
            yield RollupKey("model", owner, level, at, route)
            yield RollupKey("client", owner, level, at, client)


def _sum_keys_of_team(slot: int, user: str, team: str) -> Iterator[RollupKey]:
    for dimension, name in (("user", user), ("team", team)):
        for level in LEVELS if name else ():
            yield RollupKey(dimension, EVERYBODY, level, slot * SLOT_MS // level, name)


def _ttft_keys(slot: int, key: str, route: str, bucket: int) -> Iterator[TtftKey]:
    for level in LEVELS:
        for owner in (EVERYBODY, key):
            yield TtftKey(owner, level, slot * SLOT_MS // level, route, bucket)


def _add_up(rows: list[UsageRow]) -> list[float]:
    """Return the sums of some rows in the order of SUMS, column by column: every request pays for this."""
    columns = dict(zip(COLUMNS, zip(*map(astuple, rows), strict=True), strict=True))
    outcomes, sources = columns["outcome"], columns["usage_source"]
    outputs, durations, costs = columns["output_tokens"], columns["duration_ms"], columns["cost_nano_usd"]
    gone, estimated = outcomes.count("client_gone"), sources.count("estimated")
    unknown = sources.count(None)
    if unknown:
        unknown = sum(source is None and cost is None for source, cost in zip(sources, costs, strict=True))
    generated = generating = had = 0
    for output, duration, ttft in zip(outputs, durations, columns["ttft_ms"], strict=True):
        if ttft is not None and output is not None and duration > ttft:
            generated += output
            generating += duration - ttft
    for read, possible in zip(columns["cache_read_tokens"], columns["cache_possible_tokens"], strict=True):
        if possible:
            had += min(read or 0, possible)
    return [
        len(rows),
        len(rows) - outcomes.count("ok") - gone,
        gone,
        *[sum(filter(None, columns[name])) for name in _TOKENS],
        sum(filter(None, columns["credits"])),
        sum(filter(None, costs)),
        len(rows) - costs.count(None),
        len(rows) - unknown,
        sources.count("derived"),
        estimated,
        sum(_count_tokens(row) for row in rows if row.usage_source == "estimated") if estimated else 0,
        sum(durations),
        sum(columns["web_searches"]),
        sum(columns["web_fetches"]),
        sum(filter(None, columns["cache_possible_tokens"])),
        had,
        sum(filter(None, columns["cache_saved_nano_usd"])),
        generated,
        generating,
    ]


def _count_tokens(row: UsageRow) -> int:
    return 0 if row.input_tokens is None or row.output_tokens is None else row.input_tokens + row.output_tokens


_get_ttft = attrgetter("ttft_ms")
_TOKENS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")

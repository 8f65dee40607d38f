"""Sums that are kept beside the rows: always what the rows add up to, however they are read."""

import asyncio
import random
from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import astuple, replace

from dragoman.store import Store, open_store
from dragoman.store.rollup import (
    DAY_MS,
    HOUR_MS,
    SUMS,
    DaysPart,
    MovedPart,
    RollupPart,
    RowsPart,
    SumQuery,
    TimePart,
    cover,
    find_bucket,
    roll_up,
)
from dragoman.store.rollup import bucket_ms as bucket_middle
from dragoman.store.usage_rows import SLOT_MS, GroupBy, UsageRow, UsageSum
from store.old_store import COLUMNS_BEFORE_RUNS, find_version, write_old_store
from store.rows import row_at
from store.stories import on_both_stores
from wire_json import Json

START_MS = 20_000 * DAY_MS
known_values: dict[tuple[object, ...], list[Json]] = {}
GROUPS: dict[GroupBy, Callable[[UsageRow], str]] = {
    "all": lambda one: "",
    "model": lambda one: f"{one.provider}/{one.model}",
    "provider": lambda one: one.provider,
    "key": lambda one: one.key,
    "client": lambda one: one.client,
    "user": lambda one: one.user,
    "team": lambda one: one.team,
    "session": lambda one: one.session,
    "agent": lambda one: one.agent,
    "tag": lambda one: dict(tag.partition("=")[::2] for tag in one.tags.split(",")).get("job", ""),
}


def make_rows(count: int = 150) -> list[UsageRow]:
    """Rows of four days, of all kinds."""
    draw = random.Random(5)
    return [
        replace(
            row_at(START_MS + draw.randrange(4 * DAY_MS), number),
            key=draw.choice(["key_1", "key_2", ""]),
            client=draw.choice(["curl", "claude-cli"]),
            provider=draw.choice(["up", ""]),
            model=draw.choice(["a/b", "c"]),
            outcome=draw.choice(["ok", "lost", "client_gone"]),
            input_tokens=draw.choice([None, 5]),
            usage_source=draw.choice([None, "derived", "estimated", "reported"]),
            cost_nano_usd=draw.choice([None, 10]),
            ttft_ms=draw.choice([None, 7, 900]),
            user=draw.choice(["", "dev", "max"]),
            team=draw.choice(["", "core"]),
            session=draw.choice(["s1", "s2"]),
            agent=draw.choice(["", "a"]),
            tags=draw.choice(["", "job=7", "branch=main,job=8", "myjob=9,job=7,x=y", "job"]),
            cache_read_tokens=draw.choice([0, 40]),
            cache_possible_tokens=draw.choice([None, 0, 30, 50]),
            cache_saved_nano_usd=draw.choice([None, -5, 70]),
        )
        for number in range(count)
    ]


def test_what_caches_had_is_no_more_of_each_request_than_was_possible() -> None:
    usual = row_at(START_MS, 1)
    rows = [
        replace(usual, cache_read_tokens=read, cache_possible_tokens=possible, cache_saved_nano_usd=saved)
        for read, possible, saved in ((90, 100, 7), (50, 10, -9), (999, None, None))
    ]
    values = dict(zip(SUMS, next(values for key, values in roll_up(rows).sums if key.dimension == "all"), strict=True))
    assert values["cache_possible_tokens"] == 110
    assert values["cache_had_tokens"] == 100
    assert values["cache_saved_nano_usd"] == -2


def test_a_request_that_has_a_price_of_its_own_is_counted_without_tokens() -> None:
    usual = row_at(START_MS, 1)
    rows = [replace(usual, usage_source=source, cost_nano_usd=cost) for source, cost in ((None, 40), (None, None))]
    values = dict(zip(SUMS, next(values for key, values in roll_up(rows).sums if key.dimension == "all"), strict=True))
    assert (values["requests"], values["priced"], values["counted"]) == (2, 1, 1)


def values_of(one: UsageRow) -> list[Json]:
    """What one row adds to the sums."""
    columns = astuple(one)
    if columns not in known_values:
        sums = roll_up([one]).sums
        [values] = [values for key, values in sums if key.dimension == "all" and key.level == SLOT_MS]
        known_values[columns] = list(values)
    return known_values[columns]


def add_up(rows: Iterable[UsageRow], query: SumQuery) -> list[UsageSum]:
    """The same by hand: from the rows of the time, one after the other."""
    found: dict[tuple[str, int], list[Json]] = {}
    for one in rows:
        if not query.since_ms <= one.time_ms < query.until_ms or query.key not in (None, one.key):
            continue
        if query.team not in (None, one.team) or query.user not in (None, one.user):
            continue
        step, offset = query.step_ms, query.offset_ms
        start = (one.time_ms + offset) // step * step - offset if step else query.since_ms
        kept = found.setdefault((GROUPS[query.by](one), start // SLOT_MS), [0.0] * len(SUMS))
        kept[:] = [before + value for before, value in zip(kept, values_of(one), strict=True)]
    return [UsageSum(group, slot, *values) for (group, slot), values in sorted(found.items())]


STEPS = (
    *((SLOT_MS, 0), (HOUR_MS, 0), (DAY_MS, 0), (0, 0)),
    *((DAY_MS, HOUR_MS), (DAY_MS, 22 * SLOT_MS), (DAY_MS, -20 * SLOT_MS)),
)
QUERIES = [
    SumQuery(since, until, key, by, step, offset, team, "job", user)
    for since, until in ((0, 10**17), (START_MS + 12_345, START_MS + 3 * DAY_MS - 777), (START_MS, START_MS + 1))
    for key, team, user in (
        *((None, None, None), ("key_1", None, None), ("", None, None)),
        *((None, "core", None), (None, None, "dev"), (None, "core", "dev")),
    )
    for by in GROUPS
    for step, offset in STEPS
]


@on_both_stores
@pytest.mark.rest
async def test_every_query_returns_what_the_rows_add_up_to(store: Store) -> None:
    rows = make_rows()
    await store.append_usage(rows[:100])
    await store.append_usage(rows[50:])  # the first fifty of these are there already
    for query in QUERIES:
        assert list(await store.read_usage_sums(query)) == add_up(rows, query), query
    removed = await store.remove_usage(START_MS + DAY_MS, 10_000)
    left = [one for one in rows if one.time_ms >= START_MS + DAY_MS]
    assert removed == len(rows) - len(left)
    for query in QUERIES[:30]:
        assert list(await store.read_usage_sums(query)) == add_up(left, query), query


@on_both_stores
async def test_times_to_the_first_token_are_counted_by_route(store: Store) -> None:
    rows = make_rows(50)
    await store.append_usage(rows)
    for key in (None, "key_1"):
        counts = await store.read_ttft_counts(SumQuery(START_MS, START_MS + 4 * DAY_MS, key, "model", 0))
        for route in {GROUPS["model"](one) for one in rows}:
            own = [one for one in rows if GROUPS["model"](one) == route and key in (None, one.key)]
            expected = {
                find_bucket(ms): sum(one.ttft_ms == ms for one in own)
                for ms in (7, 900)
                if any(one.ttft_ms == ms for one in own)
            }
            assert counts.get(route, {}) == expected


def test_rows_of_an_earlier_version_are_counted(store_url: str) -> None:
    """A store without sums gets those of its rows when it is opened."""
    unknown = {"cache_possible_tokens": None, "cache_saved_nano_usd": None}  # columns that came later
    rows = [replace(one, **unknown) for one in make_rows(100)]

    async def scenario() -> None:
        version = find_version("usage_sums")
        await write_old_store(store_url, version, COLUMNS_BEFORE_RUNS, [astuple(one) for one in rows])
        store = await open_store(store_url)
        for query in QUERIES[:30]:
            assert list(await store.read_usage_sums(query)) == add_up(rows, query), query
        counts = await store.read_ttft_counts(SumQuery(0, 10**17, "key_1", "model", 0))
        timed = [one for one in rows if one.key == "key_1" and one.ttft_ms is not None]
        assert sum(sum(buckets.values()) for buckets in counts.values()) == len(timed)
        await store.close()

    asyncio.run(scenario())


def test_two_gateways_may_count_at_once(store_url: str) -> None:
    rows = make_rows(200)

    async def scenario() -> None:
        first, second = await open_store(store_url), await open_store(store_url)
        await asyncio.gather(
            *(store.append_usage(rows[start : start + 10]) for start in range(0, 200, 20) for store in (first, second)),
            *(second.append_usage(rows[start : start + 10]) for start in range(10, 200, 20)),
        )
        query = SumQuery(0, 10**17, None, "model", 0)
        assert list(await first.read_usage_sums(query)) == add_up(rows, query)
        await first.close()
        await second.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        (SumQuery(0, 2 * DAY_MS, step_ms=0), [RollupPart(DAY_MS, 0, 2)]),
        (
            SumQuery(0, 2 * DAY_MS, step_ms=DAY_MS, offset_ms=HOUR_MS),
            [DaysPart(0, 2), MovedPart([(HOUR_MS, 23), (HOUR_MS, 47)])],
        ),
        (
            SumQuery(0, 2 * DAY_MS, step_ms=DAY_MS, offset_ms=-6 * SLOT_MS),
            [
                DaysPart(0, 2),
                MovedPart([(HOUR_MS, 0), (HOUR_MS, 24), *((SLOT_MS, slot) for slot in (4, 5, 100, 101))]),
            ],
        ),
        (SumQuery(0, DAY_MS, step_ms=DAY_MS, offset_ms=22 * SLOT_MS), [RollupPart(SLOT_MS, 0, 96)]),
        (
            SumQuery(HOUR_MS - 1, DAY_MS + SLOT_MS + 1, step_ms=0),
            [
                RowsPart(HOUR_MS - 1, HOUR_MS),
                RollupPart(HOUR_MS, 1, 24),
                RollupPart(SLOT_MS, 96, 97),
                RowsPart(DAY_MS + SLOT_MS, DAY_MS + SLOT_MS + 1),
            ],
        ),
        (SumQuery(5, 5), []),
    ],
)
def test_a_time_is_covered_with_the_longest_slots(query: SumQuery, parts: list[TimePart]) -> None:
    assert list(cover(query)) == parts


def test_a_bucket_is_within_five_percent_of_the_time() -> None:
    for ms in (*range(20, 100_000, 7), 3_600_000):
        assert abs(bucket_middle(find_bucket(ms)) - ms) <= 0.05 * ms

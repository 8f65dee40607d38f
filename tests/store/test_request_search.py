"""Pages of requests on both stores: every row once, newest first, whatever the conditions are."""

import pytest
from msgspec.structs import replace

from dragoman.store import Store
from dragoman.store.usage_rows import MAX_EXAMINED, Condition, RequestSearch, UsageRow
from store.rows import NOON_MS, row, row_at
from store.stories import on_both_stores

EVER = RequestSearch()


async def read_pages(store: Store, search: RequestSearch) -> list[list[UsageRow]]:
    pages = []
    while True:
        page = await store.search_requests(search)
        pages.append(list(page.rows))
        if page.next is None:
            return pages
        search = replace(search, after=page.next)


@on_both_stores
async def test_pages_hold_every_request_once_newest_first(store: Store) -> None:
    same_time = [row_at(NOON_MS, number) for number in range(5)]
    later = [row(number) for number in range(5, 9)]
    await store.append_usage([*same_time, *later])
    pages = await read_pages(store, replace(EVER, limit=2))
    assert [len(page) for page in pages] == [2, 2, 2, 2, 1]
    assert [found for page in pages for found in page] == [*reversed(later), *reversed(same_time)]


def is_(field: str, value: str | int | bool) -> Condition:
    return Condition(field, "=", value)


def not_(condition: Condition) -> Condition:
    return replace(condition, negated=True)


FOUND: list[tuple[tuple[Condition, ...], list[int]]] = [
    ((), [4, 3, 2, 1, 0]),
    ((is_("key", "key_2"),), [1]),
    ((not_(is_("key", "key_2")),), [4, 3, 2, 0]),
    ((Condition("key", "in", ("key_2", "key_1")),), [4, 3, 2, 1, 0]),
    ((Condition("key", "in", ()),), []),
    ((not_(Condition("key", "in", ())),), [4, 3, 2, 1, 0]),
    ((is_("outcome", "lost"),), [2]),
    ((not_(is_("outcome", "ok")),), [2]),
    ((is_("error_code", "E1"),), [2]),
    ((not_(is_("error_code", "E1")),), [4, 3, 1, 0]),
    ((Condition("route", "matches", "oth*/claude-*"),), [3]),
    ((not_(Condition("route", "matches", "other/*")),), [4, 2, 1, 0]),
    ((Condition("route", "matches", "*%"),), [4]),
    ((Condition("route", "matches", "*[x]?*"),), [4]),
    ((Condition("route", "matches", "UP/*"),), []),
    ((is_("request_id", "req_0"),), [0]),
    ((is_("stream", True),), [0]),
    ((is_("user", "ann"), is_("session", "s3"), is_("tags", "job=7")), [3]),
    ((not_(is_("user", "ann")),), [4, 2, 1, 0]),
    ((Condition("ttft_ms", ">", 12),), [1]),
    ((Condition("ttft_ms", "<=", 12), Condition("losses", ">=", 2)), [4, 2, 0]),
    ((is_("key", "' OR 1 = 1 --"),), []),
]


@on_both_stores
async def test_a_search_returns_what_fits_every_condition(store: Store) -> None:
    rows = [
        replace(row(0), stream=True),
        replace(row(1), key="key_2", ttft_ms=13),
        replace(row(2), outcome="lost", error_code="E1"),
        replace(row(3), provider="other", ttft_ms=None, user="ann", session="s3", tags="job=7", lease="l3"),
        replace(row(4), model="50[x]?%"),
    ]
    await store.append_usage(rows)
    for conditions, numbers in FOUND:
        page = await store.search_requests(replace(EVER, conditions=conditions))
        assert list(page.rows) == [rows[number] for number in numbers], conditions
        assert page.next is None, conditions
        within = replace(EVER, since_ms=NOON_MS + 1, until_ms=NOON_MS + 3, conditions=conditions)
        expected = [rows[number] for number in numbers if number in (1, 2)]
        assert list((await store.search_requests(within)).rows) == expected, conditions


@pytest.mark.rest
@on_both_stores
async def test_a_search_for_something_rare_continues_on_the_next_page(store: Store) -> None:
    """No page examines more rows than MAX_EXAMINED, so that it takes no longer however many there are."""
    rows = [row(number) for number in range(2 * MAX_EXAMINED + 10)]
    rows[3] = replace(rows[3], outcome="lost")
    for start in range(0, len(rows), 2000):
        await store.append_usage(rows[start : start + 2000])
    pages = await read_pages(store, replace(EVER, conditions=(is_("outcome", "lost"),)))
    assert pages == [[], [], [rows[3]]]

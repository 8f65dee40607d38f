"""Every operation of a store, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.store import Store, cut_calls, open_store
from dragoman.store.client_keys import KeyId, KeyRow, NameTaken, Rotation
from dragoman.store.cut_calls import CUT_CALL_LIFE_S, CutCallRow
from dragoman.store.rollup import SumQuery
from dragoman.store.usage_rows import SLOT_MS, GroupBy, UsageRow, UsageSpan
from store.rows import EVER, NOON_MS, row, row_at
from store.stories import on_both_stores, open_at, run_with_store

DAY_MS = 24 * 3600 * 1000


def key(number: int, name: str) -> KeyRow:
    return KeyRow(
        id=KeyId(f"key_{number}"),
        name=name,
        prefix="dgm_abcd",
        last4="wxyz",
        created_at=1_800_000_000 + number,
        revoked_at=None,
        last_used_at=None,
    )


@on_both_stores
async def test_keys_are_listed_in_the_order_of_their_creation(store: Store) -> None:
    rows = [key(3, "c"), key(1, "a"), key(2, "b, with 'quotes' and ünïcode")]
    for one in rows:
        await store.add_key(one, one.id.encode())
    assert list(await store.list_keys()) == rows
    assert {one.digest: one.id for one in await store.list_live_keys()} == {one.id.encode(): one.id for one in rows}


@on_both_stores
async def test_a_name_is_taken_until_its_key_is_revoked(store: Store) -> None:
    await store.add_key(key(1, "laptop"), b"1")
    with pytest.raises(NameTaken):
        await store.add_key(key(2, "laptop"), b"2")
    revoked = await store.revoke_key("laptop", 1_900_000_000)
    assert revoked == replace(key(1, "laptop"), revoked_at=1_900_000_000, version=2)
    assert await store.revoke_key("laptop", 1_900_000_001) is None
    assert await store.list_live_keys() == ()
    await store.add_key(key(2, "laptop"), b"2")
    assert [found.revoked_at for found in await store.list_keys()] == [1_900_000_000, None]


@on_both_stores
async def test_a_key_is_found_by_its_digest_even_if_it_is_revoked(store: Store) -> None:
    await store.add_key(key(1, "laptop"), b"1")
    assert await store.find_key(b"1") == key(1, "laptop")
    assert await store.find_key(b"2") is None
    await store.revoke_key("laptop", 5)
    assert await store.find_key(b"1") == replace(key(1, "laptop"), revoked_at=5, version=2)


@on_both_stores
async def test_a_rotated_key_has_two_secrets_until_the_grace_ends(store: Store) -> None:
    await store.add_key(replace(key(1, "ci"), expires_at=2_000_000_000), b"1")
    rotated = await store.rotate_key("ci", Rotation(b"2", "dgm_efgh", "6789", 1_900_000_000), version=1)
    assert rotated is not None
    assert (rotated.id, rotated.last4, rotated.version) == ("key_1", "6789", 2)
    expiries = {one.digest: one.expires_at for one in await store.list_live_keys()}
    assert expiries == {b"2": 2_000_000_000, b"1": 1_900_000_000}
    await store.revoke_key("ci", 5)
    assert await store.list_live_keys() == ()


@on_both_stores
async def test_a_key_keeps_its_default_thinking_when_it_is_rotated(store: Store) -> None:
    thinker = replace(key(1, "thinker"), default_thinking="8192")
    await store.add_key(thinker, b"1")
    await store.add_key(key(2, "plain"), b"2")
    assert await store.list_keys() == (thinker, key(2, "plain"))
    await store.rotate_key("thinker", Rotation(b"3", "dgm_efgh", "6789", 1_900_000_000))
    defaults = {one.digest: one.default_thinking for one in await store.list_live_keys()}
    assert defaults == {b"1": "8192", b"2": None, b"3": "8192"}


@on_both_stores
async def test_a_key_is_changed_only_in_the_version_that_is_expected(store: Store) -> None:
    await store.add_key(key(1, "ci"), b"1")
    rotation = Rotation(b"2", "dgm_efgh", "6789", 1_900_000_000)
    assert await store.rotate_key("ci", rotation, version=2) is None
    assert await store.revoke_key("ci", 5, version=2) is None
    assert await store.list_keys() == (key(1, "ci"),)


@on_both_stores
async def test_an_id_takes_precedence_over_a_name(store: Store) -> None:
    await store.add_key(key(1, "key_2"), b"1")
    await store.add_key(key(2, "other"), b"2")
    revoked = await store.revoke_key("key_2", 5)
    assert revoked is not None
    assert revoked.id == "key_2"


def test_the_first_key_is_added_once_even_if_several_gateways_start(store_url: str) -> None:
    async def use(store: Store) -> None:
        async with open_at(store_url) as other:
            made = await asyncio.gather(
                store.add_first_key(key(1, "first"), b"1"), other.add_first_key(key(2, "first"), b"2")
            )
        assert sorted(made) == [False, True]
        assert len(await store.list_keys()) == 1

    run_with_store(store_url, use)


@on_both_stores
async def test_the_last_use_of_a_key_is_stored(store: Store) -> None:
    for number in range(3):
        await store.add_key(key(number, str(number)), b"%d" % number)
    await store.touch_keys(frozenset({KeyId("key_0"), KeyId("key_2"), KeyId("key_gone")}), 77)
    assert [found.last_used_at for found in await store.list_keys()] == [77, None, 77]


def test_the_version_changes_if_another_process_changes_the_keys(store_url: str) -> None:
    async def use(store: Store) -> None:
        async with open_at(store_url) as other:
            seen = [await store.version()]
            await other.add_key(key(1, "one"), b"1")
            seen.append(await store.version())
            await other.revoke_key("one", 5)
            seen.append(await store.version())
            assert len(set(seen)) == 3
            assert await store.version() == seen[-1]

    run_with_store(store_url, use)


def test_stored_data_is_there_after_opening_again(store_url: str) -> None:
    async def write(store: Store) -> None:
        await store.add_key(key(1, "one"), b"1")
        await store.append_usage([row(1)])

    async def read(store: Store) -> None:
        assert await store.list_keys() == (key(1, "one"),)
        assert await store.read_usage_rows(EVER) == (row(1),)

    run_with_store(store_url, write)
    run_with_store(store_url, read)


def test_several_processes_may_open_an_empty_store_at_once(store_url: str) -> None:
    async def run() -> None:
        stores = await asyncio.gather(*(open_store(store_url) for _ in range(4)))
        for number, store in enumerate(stores):
            await store.add_key(key(number, str(number)), b"%d" % number)
        assert len(await stores[0].list_keys()) == 4
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(run())


@on_both_stores
async def test_a_cut_call_is_recalled_until_it_expires(store: Store) -> None:
    await store.remember_cut(CutCallRow("a", b"\x00\xff", b"lost"), 1000)
    await store.remember_cut(CutCallRow("a", b"two", b"old"), 1000)
    await store.remember_cut(CutCallRow("a", b"two", b"new"), 1001)
    assert await store.recall_cut("a", (b"none", b"two", b"\x00\xff"), 1002) == b"new"
    assert await store.recall_cut("a", (b"\x00\xff", b"two"), 1002) == b"lost"
    assert await store.recall_cut("a", (b"none",), 1002) is None
    assert await store.recall_cut("a", (), 1002) is None
    assert await store.recall_cut("a", (b"\x00\xff",), 1000 + CUT_CALL_LIFE_S) is None
    assert await store.has_cuts(1002)
    assert not await store.has_cuts(1001 + CUT_CALL_LIFE_S)


def limit_cut_calls(monkeypatch: pytest.MonkeyPatch, total: int, per_tenant: int = 200) -> None:
    monkeypatch.setattr(cut_calls, "MAX_CUT_CALLS", total)
    monkeypatch.setattr(cut_calls, "MAX_CUT_CALLS_PER_TENANT", per_tenant)


def test_the_number_of_cut_calls_is_bounded(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_cut_calls(monkeypatch, 2)

    async def use(store: Store) -> None:
        for number in range(4):
            await store.remember_cut(CutCallRow("a", b"%d" % number, b"lost"), 1000 + number)
        kept = [await store.recall_cut("a", (b"%d" % number,), 1005) for number in range(4)]
        assert kept == [None, None, b"lost", b"lost"]

    run_with_store(store_url, use)


@on_both_stores
async def test_a_cut_call_is_recalled_for_its_own_tenant_only(store: Store) -> None:
    await store.remember_cut(CutCallRow("a", b"one", b"of a"), 1000)
    assert await store.recall_cut("b", (b"one",), 1001) is None
    await store.remember_cut(CutCallRow("b", b"one", b"of b"), 1000)
    assert [await store.recall_cut(tenant, (b"one",), 1001) for tenant in "ab"] == [b"of a", b"of b"]


def test_one_tenant_does_not_displace_the_cut_calls_of_another(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_cut_calls(monkeypatch, 4, per_tenant=2)

    async def use(store: Store) -> None:
        await store.remember_cut(CutCallRow("a", b"first", b"lost"), 1000)
        for number in range(9):
            await store.remember_cut(CutCallRow("b", b"%d" % number, b"lost"), 1001 + number)
        kept = [number for number in range(9) if await store.recall_cut("b", (b"%d" % number,), 1010)]
        assert kept == [7, 8]
        assert await store.recall_cut("a", (b"first",), 1010) == b"lost"

    run_with_store(store_url, use)


@on_both_stores
async def test_a_row_is_read_as_it_was_appended(store: Store) -> None:
    empty = replace(
        row(2),
        input_tokens=None,
        cache_read_tokens=None,
        cache_write_tokens=None,
        output_tokens=None,
        reasoning_tokens=None,
        credits=None,
    )
    empty = replace(
        empty,
        usage_source=None,
        cost_nano_usd=None,
        ttft_ms=None,
        error_code=None,
        provider="",
        model="",
        upstream_protocol="",
    )
    big = replace(
        row(3),
        input_tokens=2**53 + 1,
        cost_nano_usd=2**62,
        credits=0.1 + 0.2,
        stream=True,
        requested_model="模型/🦊'; --",
    )
    origin = replace(row(4), session="s", agent="a", parent_agent="p", user="ann", team="core", tags="job=7", lease="l")
    cached = replace(
        origin,
        id=row(5).id,
        time_ms=row(5).time_ms,
        lease="m",
        cache_possible_tokens=9,
        cache_miss="tools",
        cache_miss_path="/tools/0",
        cache_saved_nano_usd=-5,
    )
    rows = (row(1), empty, big, origin, cached)
    await store.append_usage(rows)
    assert await store.read_usage_rows(EVER) == rows


@on_both_stores
async def test_a_row_that_is_appended_again_is_stored_once(store: Store) -> None:
    await store.append_usage([row(1), row(2)])
    await store.append_usage([row(2), row(3)])
    assert await store.read_usage_rows(EVER) == (row(1), row(2), row(3))


@on_both_stores
async def test_many_rows_are_stored_once_each(store: Store) -> None:
    await store.append_usage([row(7)])
    for count in (49, 50, 51, 130):
        await store.append_usage([row(number) for number in range(count)])
        assert await store.read_usage_rows(EVER) == tuple(row(number) for number in range(count)), count


@on_both_stores
async def test_a_span_includes_its_beginning_and_excludes_its_end(store: Store) -> None:
    await store.append_usage([row(number) for number in range(5)])
    first, last = row(1).time_ms, row(3).time_ms
    assert await store.read_usage_rows(UsageSpan(first, last)) == (row(1), row(2))
    assert sum(part.requests for part in await store.read_usage_sums(SumQuery(first, last))) == 2


@on_both_stores
async def test_a_span_with_a_key_contains_only_that_keys_requests(store: Store) -> None:
    mine, others = replace(row(1), key="key_mine"), replace(row(2), key="key_others")
    await store.append_usage([mine, others])
    for key, found in (("key_mine", (mine,)), ("key_others", (others,)), ("key_nobodys", ()), ("", ())):
        span = replace(EVER, key=key)
        assert await store.read_usage_rows(span) == found
        assert sum(
            part.requests
            for part in await store.read_usage_sums(SumQuery(span.since_ms, span.until_ms, span.key, "model"))
        ) == len(found)


@on_both_stores
async def test_sums_are_exact_by_any_group(store: Store) -> None:
    rows = [
        replace(
            row_at(NOON_MS + number * SLOT_MS // 3, number),
            model=f"m{number % 3}",
            provider=f"p{number % 2}",
            key=f"key_{number % 4}",
            client=("curl", "claude-cli")[number % 2],
            input_tokens=2**40 + number,
            usage_source=("reported", "derived", "estimated", None)[number % 4],
            cost_nano_usd=None if number % 3 else 7 * number,
            outcome=("ok", "client_gone", "overloaded")[number % 3],
        )
        for number in range(40)
    ]
    await store.append_usage(rows)
    groups: tuple[tuple[GroupBy, Callable[[UsageRow], str]], ...] = (
        ("all", lambda one: ""),
        ("model", lambda one: f"{one.provider}/{one.model}"),
        ("provider", lambda one: one.provider),
        ("key", lambda one: one.key),
        ("client", lambda one: one.client),
    )
    for by, group in groups:
        found = await store.read_usage_sums(SumQuery(EVER.since_ms, EVER.until_ms, by=by))
        expected = sorted({(group(one), one.time_ms // SLOT_MS) for one in rows})
        assert [(part.group, part.slot) for part in found] == expected
        for part in found:
            mine = [one for one in rows if (group(one), one.time_ms // SLOT_MS) == (part.group, part.slot)]
            assert part.requests == len(mine)
            assert part.input_tokens == sum(one.input_tokens or 0 for one in mine)
            assert part.output_tokens == sum(one.output_tokens or 0 for one in mine)
            assert part.cost_nano_usd == sum(one.cost_nano_usd or 0 for one in mine)
            assert part.priced == sum(one.cost_nano_usd is not None for one in mine)
            known = [one for one in mine if one.usage_source is not None or one.cost_nano_usd is not None]
            assert part.counted == len(known)
            assert part.derived == sum(one.usage_source == "derived" for one in mine)
            guessed = [one for one in mine if one.usage_source == "estimated"]
            assert part.estimated == len(guessed)
            assert part.estimated_tokens == sum((one.input_tokens or 0) + (one.output_tokens or 0) for one in guessed)
            assert part.client_gone == sum(one.outcome == "client_gone" for one in mine)
            assert part.failed == sum(one.outcome == "overloaded" for one in mine)
            assert part.duration_ms == sum(one.duration_ms for one in mine)


@on_both_stores
async def test_no_usage_has_no_sums(store: Store) -> None:
    await store.append_usage([])
    assert await store.read_usage_rows(EVER) == ()
    assert await store.read_usage_sums(SumQuery(EVER.since_ms, EVER.until_ms, by="model")) == ()


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)
counts = st.none() | st.integers(0, 2**63 - 1)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.tuples(texts, texts, counts, st.none() | st.floats(0, 1e9)), max_size=5))
def test_any_values_are_read_as_they_were_appended(
    store_url: str, values: list[tuple[str, str, int | None, float | None]]
) -> None:
    async def use(store: Store) -> None:
        taken = len(await store.read_usage_rows(EVER))
        rows: list[UsageRow] = [
            replace(row(taken + number), client=client, requested_model=model, input_tokens=count, credits=credits)
            for number, (client, model, count, credits) in enumerate(values)
        ]
        await store.append_usage(rows)
        assert list((await store.read_usage_rows(EVER))[taken:]) == rows

    run_with_store(store_url, use)

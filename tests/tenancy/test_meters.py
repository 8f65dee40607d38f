"""What every meter answers: in memory, asked over a socket, in PostgreSQL, and with rates and slots in Valkey."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from dragoman.store.meter import (
    ACKNOWLEDGED,
    GONE,
    NANO,
    Admit,
    Admitted,
    Beat,
    Change,
    Correct,
    Hold,
    HoldKind,
    Level,
    Refused,
    RowsWritten,
    Settle,
)
from dragoman.store.spending import SpendingAdjustment
from tenancy.meters import (
    ALL_USD,
    CREDITS,
    REQUESTS,
    SLOTS,
    TOKENS,
    USD,
    MeterRig,
    make_row,
    rate,
    run_counted_meter,
    run_memory_meter,
    run_paired_meter,
    run_remote_meter,
    slot,
    tokens,
    usd,
)
from valkey_server import ValkeyServer

RunMeter = Callable[[], AbstractAsyncContextManager[MeterRig]]
KINDS = {"memory": run_memory_meter, "remote": run_remote_meter, "postgresql": run_counted_meter}
SQLITE_PAIR, POSTGRES_PAIR = "valkey and sqlite", "valkey and postgresql"
PAIRED = {SQLITE_PAIR: "sqlite", POSTGRES_PAIR: "postgresql"}


@pytest.fixture(params=[*KINDS, SQLITE_PAIR, pytest.param(POSTGRES_PAIR, marks=pytest.mark.rest)])
def run_meter(request: pytest.FixtureRequest, tmp_path: Path) -> RunMeter:
    """Run a meter on an empty store, once of each kind."""
    is_postgres = PAIRED.get(request.param, request.param) == "postgresql"
    url = request.getfixturevalue("postgres").empty_database() if is_postgres else f"sqlite:///{tmp_path}/dragoman.db"
    if request.param in PAIRED:
        valkey: ValkeyServer = request.getfixturevalue("valkey")
        return partial(run_paired_meter, valkey.url, url)
    return partial(KINDS[request.param], url)


def with_every_meter(story: Callable[[MeterRig], Awaitable[None]]) -> Callable[[RunMeter], Awaitable[None]]:
    """Make a test of a story, once for each kind of meter."""

    async def test(run_meter: RunMeter) -> None:
        async with run_meter() as rig:
            await story(rig)

    test.__name__ = story.__name__
    return test


@with_every_meter
async def test_everything_is_taken_and_given_back(rig: MeterRig) -> None:
    result = await rig.admit("a", rate(60), slot(2), tokens(1000, 300), usd(10 * NANO, NANO))
    assert result == Admitted((59, 1, 700, 9 * NANO))
    assert await rig.level(USD) == Level(USD, 0, NANO, 1)
    assert await rig.level(SLOTS) == Level(SLOTS, 0, 0, 1)
    assert (await rig.level(REQUESTS)).spent == 1
    assert await rig.ask(Settle("a", {USD: 2 * NANO, TOKENS: 40})) == ACKNOWLEDGED
    assert await rig.level(USD) == Level(USD, 2 * NANO)
    assert await rig.level(TOKENS) == Level(TOKENS, 40)
    assert (await rig.level(SLOTS)).running == 0


@with_every_meter
async def test_a_refusal_takes_nothing_and_names_the_first_limit(rig: MeterRig) -> None:
    await rig.admit("a", usd(10 * NANO, 9 * NANO))
    refused = await rig.admit("b", rate(60), slot(2), usd(10 * NANO, 2 * NANO))
    assert refused == Refused(2, 0, 9 * NANO, waits=True)
    assert (await rig.level(SLOTS)).running == 0
    assert (await rig.level(REQUESTS)).spent == 0
    assert isinstance(await rig.admit("c", slot(1)), Admitted)
    assert await rig.admit("d", slot(1), usd(10 * NANO, 2 * NANO)) == Refused(0, 1, wait_ms=1000)


@with_every_meter
async def test_a_spent_limit_refuses_before_one_that_others_have_reserved(rig: MeterRig) -> None:
    await rig.admit("a", usd(10, 9, ALL_USD))
    assert await rig.admit("b", usd(10, 5, ALL_USD), usd(0, 5)) == Refused(1, is_spent=True)
    assert await rig.admit("c", usd(10, 5, ALL_USD), usd(4, 5, is_strict=True)) == Refused(1, is_spent=True)
    assert await rig.admit("d", usd(10, 5, ALL_USD), usd(10, 5)) == Refused(0, 0, 9, waits=True)


@with_every_meter
async def test_one_request_may_exceed_a_limit_if_nothing_else_runs(rig: MeterRig) -> None:
    assert isinstance(await rig.admit("a", usd(10, 25)), Admitted)
    assert await rig.admit("b", usd(10, 1)) == Refused(0, 0, 25, waits=True)
    await rig.ask(Settle("a", {USD: 9}))
    assert isinstance(await rig.admit("b", usd(10, 25)), Admitted)
    await rig.ask(Settle("b", {USD: 5}))
    assert await rig.admit("c", usd(10, 1)) == Refused(0, 14, 0, is_spent=True)
    assert isinstance(await rig.admit("d", usd(20, 1)), Admitted)  # the limit was raised


@with_every_meter
async def test_each_scope_has_its_own_clauses(rig: MeterRig) -> None:
    await rig.admit("a", usd(100, 10, ALL_USD))
    assert isinstance(await rig.admit("b", usd(100, 10, ALL_USD), usd(5, 9)), Admitted)
    assert await rig.admit("c", usd(100, 81, ALL_USD), usd(50, 1)) == Refused(0, 0, 20, waits=True)


@with_every_meter
async def test_an_edited_rate_keeps_what_was_taken(rig: MeterRig) -> None:
    assert isinstance(await rig.admit("a", rate(1)), Admitted)
    assert isinstance(await rig.admit("b", rate(1)), Refused)
    assert await rig.admit("c", rate(4)) == Admitted((2,))  # at once
    assert isinstance(await rig.admit("d", rate(1)), Refused)
    assert isinstance(await rig.admit("e", rate(3)), Admitted)


@with_every_meter
async def test_a_strict_limit_is_never_exceeded(rig: MeterRig) -> None:
    assert await rig.admit("a", usd(10, 11, is_strict=True)) == Refused(0, 0, 0, is_spent=True)
    assert isinstance(await rig.admit("a", usd(10, 6, is_strict=True)), Admitted)
    assert await rig.admit("b", usd(10, 6, is_strict=True)) == Refused(0, 0, 6, waits=True)
    assert isinstance(await rig.ask(Change("a", (), (usd(10, 4, is_strict=True),))), Admitted)
    assert (await rig.level(USD)).reserved == 10
    assert isinstance(await rig.ask(Change("a", (), (usd(10, 1, is_strict=True),))), Refused)
    assert await rig.level(USD) == Level(USD, 0, 10, 1)


@with_every_meter
async def test_a_limit_of_nothing_is_spent(rig: MeterRig) -> None:
    for hold in (rate(0), slot(0), usd(0, 1), Hold(CREDITS, HoldKind.CHECK, 0, 0)):
        refused = await rig.admit("a", hold)
        assert isinstance(refused, Refused)
        assert refused.is_spent


@with_every_meter
async def test_credits_are_only_checked(rig: MeterRig) -> None:
    hold = Hold(CREDITS, HoldKind.CHECK, 100, 0)
    for lease in "ab":
        assert await rig.admit(lease, hold) == Admitted((100,))
    await rig.ask(Settle("a", {CREDITS: 100}))
    assert await rig.admit("c", hold) == Refused(0, 100, is_spent=True)


@with_every_meter
async def test_a_rate_lets_a_burst_pass_and_names_the_wait(rig: MeterRig) -> None:
    for number in range(6):
        assert isinstance(await rig.admit(f"r{number}", rate(6)), Admitted)
    refused = await rig.admit("late", rate(6))
    assert isinstance(refused, Refused)
    assert 0 < refused.wait_ms <= 10_000


@with_every_meter
async def test_a_request_larger_than_its_bucket_leaves_a_debt_that_settling_corrects(rig: MeterRig) -> None:
    admitted = await rig.admit("a", rate(1000, 5000))
    assert admitted == Admitted((-4000,))
    refused = await rig.admit("b", rate(1000, 1))
    assert isinstance(refused, Refused)
    assert refused.wait_ms > 200_000
    await rig.ask(Settle("a", {REQUESTS: 100}))
    assert isinstance(await rig.admit("b", rate(1000, 800)), Admitted)


@with_every_meter
async def test_a_correction_only_raises(rig: MeterRig) -> None:
    await rig.admit("a", usd(100, 10))
    assert await rig.ask(Correct("a", {USD: 30})) == ACKNOWLEDGED
    assert await rig.ask(Correct("a", {USD: 20})) == ACKNOWLEDGED
    assert await rig.level(USD) == Level(USD, 0, 30, 1)
    await rig.ask(Settle("a", {USD: 1}))
    assert await rig.level(USD) == Level(USD, 1)
    assert await rig.ask(Correct("a", {USD: 20})) == GONE


@with_every_meter
async def test_another_target_moves_its_part_of_the_lease(rig: MeterRig) -> None:
    first, second = (USD.replace("key:key_1", f"provider:{name}") for name in ("kiro", "api"))
    await rig.admit("a", usd(100, 10), usd(100, 10, first), slot(1, "provider:kiro:concurrent"))
    await rig.admit("b", usd(5, 5, second))
    change = Change("a", (first, "provider:kiro:concurrent"), (usd(5, 10, second),))
    assert await rig.ask(change) == Refused(0, 0, 5, waits=True)
    assert (await rig.level(first)).reserved == 10
    assert (await rig.level("provider:kiro:concurrent")).running == 1
    await rig.ask(Settle("b", {}))
    assert isinstance(await rig.ask(change), Admitted)
    assert (await rig.level(first)).reserved == 0
    assert (await rig.level("provider:kiro:concurrent")).running == 0
    assert await rig.level(second) == Level(second, 0, 10, 1)
    await rig.ask(Settle("a", {USD: 3, second: 3}))
    assert [(await rig.level(name)).spent for name in (USD, first, second)] == [3, 0, 3]


@with_every_meter
async def test_operations_may_come_again(rig: MeterRig) -> None:
    for _ in range(2):
        assert isinstance(await rig.admit("a", rate(60), slot(1), usd(100, 10)), Admitted)
    assert await rig.level(USD) == Level(USD, 0, 10, 1)
    for _ in range(2):
        assert await rig.ask(Settle("a", {USD: 7})) == ACKNOWLEDGED
    assert await rig.level(USD) == Level(USD, 7)
    assert await rig.admit("a", usd(100, 10)) == GONE
    await rig.store.append_usage([make_row(1, 7, "a")])
    for _ in range(2):
        assert await rig.ask(RowsWritten(("a",))) == ACKNOWLEDGED
    assert await rig.ask(Settle("a", {USD: 7})) == GONE
    assert await rig.level(USD) == Level(USD, 7)


@with_every_meter
async def test_a_settled_lease_is_never_admitted(rig: MeterRig) -> None:
    assert await rig.ask(Settle("a", {})) == GONE
    assert await rig.admit("a", usd(100, 10)) == GONE
    assert await rig.level(USD) == Level(USD)


@with_every_meter
async def test_what_is_only_checked_is_admitted_also_where_nothing_was_counted_before(rig: MeterRig) -> None:
    for lease in ("a", "b"):
        check = Admit(lease, rig.meter.process, (usd(100, 10), tokens(50, 5)))
        results = await rig.meter.apply([check, Settle(lease, {USD: 0, TOKENS: 0})])
        assert isinstance(results[0], Admitted)
    assert await rig.level(USD) == Level(USD)


@with_every_meter
async def test_a_counter_begins_with_what_rows_and_adjustments_say(rig: MeterRig) -> None:
    await rig.store.append_usage([make_row(1, 500), make_row(2, 30, key="key_2")])
    row = make_row(3, 0)
    await rig.store.add_adjustment(SpendingAdjustment(row.time_ms, "key:key_1", "usd", -100))
    assert await rig.admit("a", usd(400, 10)) == Refused(0, 400, is_spent=True)
    assert await rig.admit("a", usd(410, 10), usd(600, 10, ALL_USD), tokens(500, 50)) == Admitted((0, 60, 350))
    assert await rig.level(ALL_USD) == Level(ALL_USD, 530, 10, 1)


@with_every_meter
async def test_what_is_settled_and_not_written_is_counted_once(rig: MeterRig) -> None:
    await rig.admit("a", usd(1000, 10), slot(5))
    await rig.admit("b", usd(1000, 10))
    await rig.ask(Settle("a", {USD: 40, ALL_USD: 40}))
    await rig.store.append_usage([make_row(1, 40, "a"), make_row(2, 5)])
    assert (await rig.level(ALL_USD)).spent == 45  # which is read only now: row a is stored, and not acknowledged
    await rig.ask(RowsWritten(("a",)))
    await rig.ask(Settle("b", {USD: 3, ALL_USD: 3}))
    assert (await rig.level(ALL_USD)).spent == 48
    assert (await rig.level(USD)).spent == 43


@pytest.mark.rest
async def test_an_adjustment_takes_effect_soon_and_ends(run_meter: RunMeter, caplog: pytest.LogCaptureFixture) -> None:
    async with run_meter() as rig:
        await rig.store.append_usage([make_row(1, 500)])
        assert isinstance(await rig.admit("a", usd(400, 10)), Refused)
        now = make_row(2, 0).time_ms
        await rig.store.add_adjustment(SpendingAdjustment(now, "key:key_1", "usd", -200, until_ms=now + 2500))
        await wait_for_spent(rig, 300)
        await wait_for_spent(rig, 500)
    assert "add up to" not in caplog.text  # the counter and its rows did not differ


async def wait_for_spent(rig: MeterRig, amount: int) -> None:
    for _ in range(1200):
        if (await rig.level(USD)).spent == amount:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{amount} was never spent")


@with_every_meter
async def test_a_process_settles_what_it_does_not_name(rig: MeterRig) -> None:
    await rig.admit("a", usd(100, 10))
    assert await rig.ask(Beat(rig.meter.process, ())) == ACKNOWLEDGED
    assert (await rig.level(USD)).running == 1  # it may have been admitted a moment ago


@with_every_meter
async def test_no_more_is_spent_than_the_limit_and_one_request(rig: MeterRig) -> None:
    limit, cost, admitted = 1000, 30, 0

    async def agent(number: int) -> None:
        nonlocal admitted
        while True:
            lease = f"agent-{number}-{admitted}"
            admitted += 1
            result = await rig.admit(lease, slot(40), usd(limit, 3 * cost))
            if isinstance(result, Admitted):
                await asyncio.sleep(0)
                await rig.ask(Settle(lease, {USD: cost}))
            elif isinstance(result, Refused) and result.is_spent:
                return
            else:
                await asyncio.sleep(0.001)

    await asyncio.gather(*(agent(number) for number in range(50)))
    level = await rig.level(USD)
    assert limit <= level.spent <= limit + cost
    assert (level.reserved, level.running) == (0, 0)
    assert (await rig.level(SLOTS)).running == 0

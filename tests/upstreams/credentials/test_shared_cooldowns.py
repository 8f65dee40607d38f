"""Gateways that share cooldowns know the same ones within a second, in whatever order their credentials stand."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dragoman.store import Store, open_store
from dragoman.store.cooldowns import MAX_ROWS, CooldownRow, EndedCooldown
from dragoman.store.valkey import Valkey, parse_address
from dragoman.upstreams.credentials.cooldowns import ALL_MODELS, PROBE_AFTER_S, CredentialCooldown
from dragoman.upstreams.credentials.pool import CredentialChoice, Member, Pool
from dragoman.upstreams.credentials.shared_cooldowns import PROBING_S, CooldownBoard, SharedCooldowns, name_member
from dragoman.upstreams.credentials.stored_cooldowns import StoredCooldowns
from dragoman.upstreams.credentials.valkey_cooldowns import MAX_FIELDS, ValkeyCooldowns
from narrowing import present
from valkey_server import ValkeyServer
from waiting import wait_until_async

AGREED_S = 1.5  # a second, and what a busy machine adds
A, B = Member("a", "first"), Member("b", "second")


class Gateway:
    """The pool of one gateway, with its board."""

    def __init__(self, *members: Member) -> None:
        self.board = CooldownBoard()
        self.pool = Pool(members, cooldowns=SharedCooldowns(self.board, "up"))
        self.members = members

    def start(self, member: Member, model: str, seconds: float = 600.0) -> None:
        now = time.time()
        self.pool.start_cooldown(self.members.index(member), CredentialCooldown(model, now + seconds, "quota"), now)

    def succeed(self, member: Member, model: str) -> None:
        self.pool.record_success(self.members.index(member), model, now=time.time())

    def choose(self, model: str) -> CredentialChoice:
        return present(self.pool.choose(None, model, (), time.time()))

    def may_use(self, member: Member, model: str, in_s: float = 0.0) -> bool:
        """Return whether no cooldown keeps requests from a member, now or some seconds from now."""
        now = time.time() + in_s
        return not any(one.blocks(now) for one in self.board.known.active(name_member("up", member.id), model, now))

    def list_known(self) -> set[tuple[str, str]]:
        """Return the labels of members and the models of all cooldowns."""
        return {(one.label, one.model) for one in self.pool.states(time.time()) if one.free_at is not None}


@asynccontextmanager
async def over_valkey(server: ValkeyServer, *gateways: Gateway) -> AsyncIterator[None]:
    connections = [Valkey(parse_address(server.url)) for _ in gateways]
    exchanges = [ValkeyCooldowns(one.board, shared) for one, shared in zip(gateways, connections, strict=True)]
    for exchange in exchanges:
        exchange.start()
    try:
        yield
    finally:
        for exchange in exchanges:
            await exchange.stop()
        for shared in connections:
            await shared.stop()


@asynccontextmanager
async def over_store(store: Store, *gateways: Gateway) -> AsyncIterator[None]:
    exchanges = [StoredCooldowns(one.board, store) for one in gateways]
    for exchange in exchanges:
        exchange.start()
    try:
        yield
    finally:
        for exchange in exchanges:
            await exchange.stop()


async def agree(known: set[tuple[str, str]], *gateways: Gateway, patience_s: float = AGREED_S) -> None:
    await wait_until_async(lambda: all(one.list_known() == known for one in gateways), patience_s)


async def exchange_changes(one: Gateway, other: Gateway) -> None:
    one.start(A, "m")
    await agree({("first", "m")}, one, other)
    other.start(B, ALL_MODELS)
    await agree({("first", "m"), ("second", "")}, one, other)
    other.succeed(A, "m")
    await agree({("second", "")}, one, other)
    one.start(A, "m")
    one.start(A, "invented \ud800")  # it stays in its process
    await agree({("first", "m"), ("second", "")}, other)
    assert one.pool.end_cooldowns() >= 2
    await agree(set(), one, other)


async def test_gateways_on_one_valkey_agree(valkey: ValkeyServer) -> None:
    one, other = Gateway(A, B), Gateway(B, A)
    async with over_valkey(valkey, one, other):
        await exchange_changes(one, other)


@pytest.mark.rest
async def test_gateways_on_one_database_agree(store_url: str) -> None:
    one, other = Gateway(A, B), Gateway(B, A)
    async with await open_store(store_url) as store, over_store(store, one, other):
        await exchange_changes(one, other)


async def probe_in_turn(one: Gateway, other: Gateway) -> None:
    began = time.time() - 400.0
    one.board.start(name_member("up", A.id), CredentialCooldown("m", began + 4000.0, "quota"), began)
    await wait_until_async(lambda: other.list_known() and other.may_use(A, "m"), AGREED_S)
    for prober, waiting in ((one, other), (other, one)):
        probe = prober.choose("m")
        await wait_until_async(lambda: not waiting.may_use(A, "m"), AGREED_S)  # noqa: B023
        assert waiting.may_use(A, "m", PROBING_S + 1)  # the gateway that probes it may have died
        prober.pool.release(probe)  # it had no result
        await wait_until_async(lambda: waiting.may_use(A, "m"), AGREED_S)  # noqa: B023
    probe = one.choose("m")
    one.start(A, "m", seconds=4000.0)
    one.pool.release(probe)
    await wait_until_async(lambda: not other.may_use(A, "m", PROBING_S + 1), AGREED_S)
    assert [known.probe_interval_s for _, _, known in other.board.known.list_all()] == [2 * PROBE_AFTER_S]
    before = other.board.unsent.copy()
    other.pool.release(other.choose("m"))  # by a request that finds no other
    assert other.board.unsent == before


async def test_gateways_on_one_valkey_probe_one_after_the_other(valkey: ValkeyServer) -> None:
    one, other = Gateway(A), Gateway(A)
    async with over_valkey(valkey, one, other):
        await probe_in_turn(one, other)


@pytest.mark.rest
async def test_gateways_on_one_database_probe_one_after_the_other(store_url: str) -> None:
    one, other = Gateway(A), Gateway(A)
    async with await open_store(store_url) as store, over_store(store, one, other):
        await probe_in_turn(one, other)


async def test_a_gateway_that_starts_later_knows_what_lasts(valkey: ValkeyServer) -> None:
    one, later = Gateway(A, B), Gateway(A)
    async with over_valkey(valkey, one):
        one.start(A, "m")
        one.start(B, "short", seconds=0.05)
        await wait_until_async(lambda: not one.board.unsent)
        await wait_until_async(lambda: ("second", "short") not in one.list_known())
        async with over_valkey(valkey, later):
            await agree({("first", "m")}, later)
            assert [row[1] for row in later.board.known.list_all()] == ["m"]


@pytest.mark.rest
async def test_what_happens_while_valkey_is_away_is_known_when_it_is_back(valkey: ValkeyServer) -> None:
    one, other = Gateway(A, B), Gateway(A, B)
    async with over_valkey(valkey, one, other):
        one.start(A, "before")
        await agree({("first", "before")}, one, other)
        valkey.kill()  # and with it what it knew
        one.start(A, "meanwhile")
        other.succeed(A, "before")
        assert (one.list_known(), other.list_known()) == ({("first", "before"), ("first", "meanwhile")}, set())
        valkey.start()
        await agree({("first", "meanwhile")}, one, other, patience_s=10.0)
        valkey.freeze()
        one.succeed(A, "meanwhile")
        await asyncio.sleep(1.0)  # the breaker opens
        valkey.thaw()
        await agree(set(), one, other, patience_s=10.0)


def make_row(number: int, lasts_s: float = 600.0) -> CooldownRow:
    until_ms = round((time.time() + lasts_s) * 1000) + number
    return CooldownRow(name_member("up", "a"), f"model {number}", until_ms, "rate_limited", until_ms, 300_000)


async def test_stored_cooldowns_are_replaced_removed_and_bounded(store_url: str) -> None:
    now_ms = round(time.time() * 1000)
    rows = [make_row(number) for number in range(3)]
    async with await open_store(store_url) as store:
        await store.change_cooldowns([*rows, make_row(9, -1.0)], now_ms)
        assert await store.list_cooldowns(now_ms) == rows[::-1]
        changed = make_row(1, 900.0)
        await store.change_cooldowns([EndedCooldown(rows[0].member, rows[0].model), changed], now_ms)
        assert await store.list_cooldowns(now_ms) == [changed, rows[2]]
        await store.change_cooldowns([make_row(number) for number in range(MAX_ROWS + 10)], now_ms)
        assert len(await store.list_cooldowns(0)) == MAX_ROWS


@pytest.mark.rest
async def test_cooldowns_in_valkey_are_bounded(valkey: ValkeyServer) -> None:
    gateway = Gateway(A)
    async with over_valkey(valkey, gateway):
        count: Callable[[], int] = lambda: int(valkey.execute("HLEN", "{dragoman:1}:cooldowns").lstrip(b":"))  # noqa: E731
        for number in range(MAX_FIELDS + 10):
            row = make_row(number)
            gateway.board.unsent[row.member, row.model] = row
        gateway.board.has_unsent.set()
        await wait_until_async(lambda: not gateway.board.unsent)
        assert MAX_FIELDS / 2 <= count() <= MAX_FIELDS

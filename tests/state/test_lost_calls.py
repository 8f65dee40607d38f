"""Lost tool calls are shared between workers, bounded, and expire."""

import asyncio
import logging
from pathlib import Path
from typing import cast

import pytest

from dragoman.state import lost_calls as memory_module
from dragoman.state.lost_calls import CHECK_EVERY_S, STORE_RETRY_S, FindDigests, LostCall, LostCalls
from dragoman.store import Store, StoreError, cut_calls, open_store
from dragoman.store.cut_calls import CUT_CALL_LIFE_S

LOST = (LostCall("write", '{"path": "x'),)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not take a busy machine for a store that is slow."""
    monkeypatch.setattr(memory_module, "STORE_TIMEOUT_S", 30.0)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def naming(*digests: bytes) -> FindDigests:
    """Returns what finds these digests of a conversation."""

    async def find() -> tuple[bytes, ...]:
        return digests

    return find


def test_no_conversation_is_digested_while_no_call_is_lost() -> None:
    async def refuse() -> tuple[bytes, ...]:
        raise AssertionError("the conversation was digested")

    assert asyncio.run(LostCalls(None).recall("a", refuse)) == ()


@pytest.mark.parametrize("stored", [False, True], ids=["in this process", "in the store"])
def test_a_lost_call_is_recalled_until_it_expires(stored: bool, tmp_path: Path) -> None:
    clock = Clock()

    async def scenario() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/d.db") if stored else None
        memory = LostCalls(store, clock)
        await memory.remember("a", b"one", LOST)
        assert await memory.recall("a", naming(b"other", b"one")) == LOST
        assert await memory.recall("a", naming(b"other")) == ()
        clock.now += CUT_CALL_LIFE_S + 1
        assert await memory.recall("a", naming(b"one")) == ()
        if store:
            await store.close()

    asyncio.run(scenario())


def test_two_workers_share_lost_calls(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/d.db"

    async def scenario() -> None:
        first, second = await open_store(url), await open_store(url)
        await LostCalls(first).remember("a", b"one", LOST)
        assert await LostCalls(second).recall("a", naming(b"one")) == LOST
        await first.close()
        await second.close()

    asyncio.run(scenario())


class CountingStore:
    """A store that counts the questions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.questions = 0

    async def recall_cut(self, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
        self.questions += 1
        return await self._store.recall_cut(tenant, digests, now)

    async def has_cuts(self, now: int) -> bool:
        self.questions += 1
        return await self._store.has_cuts(now)


def test_the_store_is_queried_rarely_while_nothing_was_lost(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/d.db"
    clock = Clock()

    async def scenario() -> None:
        first, second = await open_store(url), await open_store(url)
        counting = CountingStore(second)
        memory = LostCalls(cast(Store, counting), clock)  # it has what is used here
        for _ in range(10):
            assert await memory.recall("a", naming(b"one")) == ()
        assert counting.questions == 1
        await LostCalls(first, clock).remember("a", b"one", LOST)
        clock.now += CHECK_EVERY_S
        for _ in range(10):
            assert await memory.recall("a", naming(b"one")) == LOST
        assert counting.questions == 12
        clock.now += CUT_CALL_LIFE_S
        for _ in range(10):
            assert await memory.recall("a", naming(b"one")) == ()
        assert counting.questions == 13
        await first.close()
        await second.close()

    asyncio.run(scenario())


def limit_cut_calls(monkeypatch: pytest.MonkeyPatch, total: int, per_tenant: int = 200) -> None:
    for module in (memory_module, cut_calls):
        monkeypatch.setattr(module, "MAX_CUT_CALLS", total)
        monkeypatch.setattr(module, "MAX_CUT_CALLS_PER_TENANT", per_tenant)


@pytest.mark.parametrize("stored", [False, True], ids=["in this process", "in the store"])
def test_memory_use_is_bounded(stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_cut_calls(monkeypatch, 3)
    clock = Clock()

    async def scenario() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/d.db") if stored else None
        memory = LostCalls(store, clock)
        for name in (b"a", b"b", b"c", b"d", b"e"):
            clock.now += 1
            await memory.remember("a", name, LOST)
        kept = [name for name in (b"a", b"b", b"c", b"d", b"e") if await memory.recall("a", naming(name))]
        assert kept == [b"c", b"d", b"e"]
        if store:
            await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("stored", [False, True], ids=["in this process", "in the store"])
def test_a_tenant_neither_recalls_nor_evicts_calls_of_another(
    stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_cut_calls(monkeypatch, 4, per_tenant=2)
    clock = Clock()

    async def scenario() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/d.db") if stored else None
        memory = LostCalls(store, clock)
        await memory.remember("a", b"one", LOST)
        assert await memory.recall("b", naming(b"one")) == ()
        for number in range(9):
            clock.now += 1
            await memory.remember("b", b"%d" % number, LOST)
        kept = [number for number in range(9) if await memory.recall("b", naming(b"%d" % number))]
        assert kept == [7, 8]
        assert await memory.recall("a", naming(b"one")) == LOST
        if store:
            await store.close()

    asyncio.run(scenario())


class StoreThatIsAway:
    """A store that fails, or hangs, until `error` is None."""

    error: Exception | None = TimeoutError()  # without a text, as asyncio.timeout raises it

    async def has_cuts(self, now: int) -> bool:
        if self.error is not None:
            raise self.error
        return False


async def test_an_outage_of_the_store_is_logged_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    clock, store = Clock(), StoreThatIsAway()
    memory = LostCalls(cast(Store, store), clock)  # it has what is used here
    caplog.set_level(logging.INFO)

    async def recall_many() -> list[str]:
        """Recall in several requests at once, again and again; return what is logged."""
        caplog.clear()
        for _ in range(3):
            clock.now += STORE_RETRY_S + CHECK_EVERY_S
            await asyncio.gather(*(memory.recall("a", naming(b"one")) for _ in range(5)))
        return [record.getMessage() for record in caplog.records]

    start = "lost tool calls are not shared for a while: "
    assert await recall_many() == [start + "the store gave no answer within 30 s"]
    assert await recall_many() == []
    store.error = None
    assert await recall_many() == ["lost tool calls are shared again"]
    store.error = StoreError("the disk is full")
    assert await recall_many() == [start + "the disk is full"]


def test_simultaneous_requests_query_the_store_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, store = Clock(), await open_store(f"sqlite:///{tmp_path}/d.db")
        counting = CountingStore(store)
        memory = LostCalls(cast(Store, counting), clock)  # it has what is used here
        assert await memory.recall("a", naming(b"one")) == ()
        clock.now += CHECK_EVERY_S
        found = await asyncio.gather(*(memory.recall("a", naming(b"one")) for _ in range(10)))
        assert not any(found)
        assert counting.questions == 2
        await store.close()

    asyncio.run(scenario())

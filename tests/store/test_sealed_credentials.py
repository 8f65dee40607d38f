"""Credentials in the store: one version follows another once, and one process at a time renews."""

import asyncio

import pytest
from msgspec.structs import replace

from dragoman.store import Store, open_store
from dragoman.store.audit import make_audit_row
from dragoman.store.database import HeldElsewhere
from dragoman.store.sealed_credentials import Renewed, SealedCredential
from store.stories import on_both_stores

AUDIT = make_audit_row("accounts.push", "team")
ROW = SealedCredential("team", "kiro", 1, b"sealed 1", 1000)


def seal(version: int) -> bytes:
    return b"sealed %d" % version


async def put(store: Store, row: SealedCredential = ROW) -> SealedCredential:
    return await store.put_sealed(row, seal, AUDIT)


@on_both_stores
async def test_a_credential_is_put_as_the_next_version_with_an_audit_row(store: Store) -> None:
    assert await put(store) == ROW
    again = await put(store, replace(ROW, kind="codex", changed_at=2000))
    assert again == SealedCredential("team", "codex", 2, b"sealed 2", 2000)
    await put(store, replace(ROW, name="other"))
    assert [row.name for row in await store.list_sealed()] == ["other", "team"]
    assert await store.find_sealed("team") == again
    assert await store.find_sealed("unknown") is None
    assert [row.action for row in await store.list_audit_rows(2**62, 9)] == ["accounts.push"] * 3


@on_both_stores
async def test_a_renewal_of_an_older_version_is_not_stored(store: Store) -> None:
    await put(store)
    async with store.hold_sealed("team") as held:
        assert await held.read() == ROW
        assert await held.renew(Renewed("team", 1, b"renewed", 2000))
    assert not await store.renew_sealed(Renewed("team", 1, b"late", 3000))
    assert await store.find_sealed("team") == SealedCredential("team", "kiro", 2, b"renewed", 2000)


@on_both_stores
async def test_a_renewal_that_is_stored_again_is_no_second_one(store: Store) -> None:
    await put(store)
    renewed = Renewed("team", 1, b"renewed", 2000)
    assert await store.renew_sealed(renewed)
    assert await store.renew_sealed(renewed)
    assert await store.find_sealed("team") == SealedCredential("team", "kiro", 2, b"renewed", 2000)


@on_both_stores
async def test_what_is_not_committed_leaves_the_credential_as_it_was(store: Store) -> None:
    await put(store)
    async with store.hold_sealed("team") as held:
        assert await held.read() == ROW
    async with store.hold_sealed("team") as held:
        assert await held.read() == ROW


@on_both_stores
async def test_resealing_keeps_the_version_so_that_a_renewal_under_way_is_stored(store: Store) -> None:
    await put(store)
    assert await store.reseal("team", lambda row: b"again " + row.sealed, AUDIT)
    assert await store.find_sealed("team") == replace(ROW, sealed=b"again sealed 1")
    assert not await store.reseal("team", lambda row: None, AUDIT)
    assert not await store.reseal("unknown", lambda row: b"anything", AUDIT)
    assert await store.renew_sealed(Renewed("team", 1, b"renewed", 2000))


def test_others_wait_while_one_process_renews(store_url: str) -> None:
    order: list[str] = []

    async def renew(name: str, began: asyncio.Event) -> None:
        async with await open_store(store_url) as store, store.hold_sealed("team") as held:
            row = await held.read()
            assert row is not None
            order.append(f"{name} reads {row.version}")
            began.set()
            for _ in range(20):  # of which the other would need none
                await asyncio.sleep(0.01)
            order.append(f"{name} writes")
            assert await held.renew(Renewed("team", row.version, b"by " + name.encode(), 2000))

    async def run() -> None:
        async with await open_store(store_url) as store:
            await put(store)
            began = asyncio.Event()
            first = asyncio.create_task(renew("first", began))
            await began.wait()
            await asyncio.gather(first, renew("second", asyncio.Event()))
            row = await store.find_sealed("team")
        assert row is not None
        assert (row.version, row.sealed) == (3, b"by second")

    asyncio.run(run())
    assert order == ["first reads 1", "first writes", "second reads 2", "second writes"]


def test_another_name_and_other_operations_wait_for_nothing(store_url: str) -> None:
    async def run() -> None:
        async with await open_store(store_url) as store:
            await put(store)
            async with store.hold_sealed("team") as held:
                await held.read()
                assert await store.find_sealed("team") == ROW
                await put(store, replace(ROW, name="other"))
                async with store.hold_sealed("other") as other:
                    assert await other.read() is not None

    asyncio.run(run())


def test_a_process_that_waits_too_long_gets_an_error(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.store.sqlite.HOLD_WAIT_S", 0.2)
    monkeypatch.setattr("dragoman.store.postgres.HOLD_WAIT_S", 0.2)

    async def run() -> None:
        async with await open_store(store_url) as store:
            await put(store)
            async with store.hold_sealed("team") as held:
                await held.read()
                with pytest.raises(HeldElsewhere):
                    async with store.hold_sealed("team") as other:
                        await other.read()

    asyncio.run(run())

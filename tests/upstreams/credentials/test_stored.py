"""A credential in the store: renewed once for all processes, sealed, never overwritten, and named when it is no use."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dragoman.store.sealed_credentials import Renewed
from dragoman.store.sealing import VARIABLE
from dragoman.translate.hub.failure import Kind, RequestError
from fakes.kiro import FakeKiro, json_answer
from postgres import Postgres
from store.stories import on_sqlite_first
from upstreams.credentials.stored_kit import KEY, OTHER_KEY, expired, look, open_rig, put
from waiting import wait_until_async

REFRESH = "/refreshToken"
HOUR_S = 3600


async def test_four_processes_renew_once_each_time_it_expires(store_url: str) -> None:
    with FakeKiro() as fake:
        fake.refresh_delay_s = 0.02
        async with AsyncExitStack() as stack:
            rigs = [await stack.enter_async_context(open_rig(fake, store_url)) for _ in range(4)]
            await put(rigs[0].stored, expired(fake))
            for number in range(1, 4):
                tokens = await asyncio.gather(*(rig.get_token() for rig in rigs))
                assert len(set(tokens)) == 1
                assert fake.counts[REFRESH] == number
                for rig in rigs:
                    rig.ahead_s += 2 * HOUR_S
            version, table = await look(rigs[0].stored)
        assert version == 4
        assert table["refreshToken"] in fake.refresh
        assert table["authMethod"] == "social"


@on_sqlite_first
async def test_a_token_that_another_process_renewed_is_used_after_a_rejection(store_url: str) -> None:
    with FakeKiro() as fake:
        async with open_rig(fake, store_url) as one, open_rig(fake, store_url) as two:
            await put(one.stored, expired(fake))
            old = await one.get_token()
            assert await two.get_token() == old
            assert await one.refresher.renew()
            assert await two.refresher.renew()
            new = await two.get_token()
        assert new != old
        assert fake.counts[REFRESH] == 2


async def test_what_was_pushed_while_it_was_renewed_stays(store_url: str) -> None:
    """PostgreSQL lets the push wait; on one machine it comes in between, and the renewal is not stored."""
    with FakeKiro() as fake:
        async with open_rig(fake, store_url) as one, open_rig(fake, store_url) as two:
            await put(one.stored, expired(fake))
            pushed = expired(fake)
            fake.refresh_delay_s = 0.2
            renewing = asyncio.create_task(one.get_token())
            await wait_until_async(lambda: fake.counts[REFRESH])
            await put(two.stored, pushed)
            await renewing
            _, table = await look(two.stored)
            assert table["refreshToken"] == pushed["refreshToken"]


@on_sqlite_first
async def test_a_stop_waits_for_the_renewal_under_way(store_url: str) -> None:
    with FakeKiro() as fake:
        fake.refresh_delay_s = 0.2
        async with open_rig(fake, store_url) as rig:
            await put(rig.stored, expired(fake))
            renewing = asyncio.create_task(rig.get_token())
            await wait_until_async(lambda: fake.counts[REFRESH])
            await rig.stored.finish(30)
            version, table = await look(rig.stored)
            assert version == 2
            assert table["refreshToken"] in fake.refresh
            await renewing


@on_sqlite_first
async def test_another_key_is_named_and_nothing_is_overwritten(store_url: str) -> None:
    with FakeKiro() as fake:
        async with open_rig(fake, store_url) as rig, open_rig(fake, store_url, {VARIABLE: OTHER_KEY}) as other:
            await put(rig.stored, expired(fake))
            before = await rig.stored.read("team")
            with pytest.raises(RequestError) as refused:
                await other.get_token()
            assert await rig.stored.read("team") == before
            assert refused.value.failure.kind is Kind.CREDENTIAL
            assert "store:team is sealed with a key that $DRAGOMAN_SECRET_KEY does not have" in str(refused.value)
            assert "dragoman accounts push team FILE" in str(refused.value)
            assert KEY not in str(refused.value)
            await rig.get_token()
        assert fake.counts[REFRESH] == 1


@on_sqlite_first
async def test_a_changed_ciphertext_is_named(store_url: str) -> None:
    with FakeKiro() as fake:
        async with open_rig(fake, store_url) as rig:
            await put(rig.stored, expired(fake))
            row = await rig.stored.read("team")
            changed = row.sealed[:-1] + bytes([row.sealed[-1] ^ 1])
            assert await rig.stored.store.renew_sealed(Renewed("team", row.version, changed, 2000))
            with pytest.raises(RequestError, match="store:team was changed in the database"):
                await rig.get_token()
        assert fake.counts[REFRESH] == 0


@on_sqlite_first
async def test_a_missing_credential_and_one_of_another_kind_are_named(store_url: str) -> None:
    with FakeKiro() as fake:
        async with open_rig(fake, store_url) as rig:
            with pytest.raises(RequestError, match=r"store:team is not in the store\. Put it there: dragoman accounts"):
                await rig.get_token()
            await put(rig.stored, expired(fake), kind="codex")
            with pytest.raises(RequestError, match="store:team is a credential of kind 'codex', not 'kiro'"):
                await rig.get_token()


@pytest.fixture
def database(postgres: Postgres) -> str:
    return postgres.empty_database()


async def test_without_a_key_postgresql_refuses_by_name(database: str) -> None:
    with FakeKiro() as fake:
        async with open_rig(fake, database) as rig, open_rig(fake, database, {}) as without:
            await put(rig.stored, expired(fake))
            with pytest.raises(RequestError, match=r"store:team needs a key, and PostgreSQL keeps none: set \$DRAG"):
                await without.get_token()


@on_sqlite_first
async def test_a_rejected_refresh_token_says_which_credential_to_push(store_url: str) -> None:
    with FakeKiro() as fake:
        async with open_rig(fake, store_url) as rig:
            await put(rig.stored, expired(fake))
            fake.script(REFRESH, json_answer({"error": "invalid_grant"}, 400))
            with pytest.raises(RequestError, match="sign in again, then `dragoman accounts push team FILE`"):
                await rig.get_token()
            fake.script(REFRESH)
            await put(rig.stored, expired(fake))
            await rig.get_token()


async def test_a_lost_file_of_the_key_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/dragoman.db"
    with FakeKiro() as fake:
        async with open_rig(fake, url) as rig, open_rig(fake, url, {}) as without:
            await put(rig.stored, expired(fake))
            with pytest.raises(RequestError, match=r"store:team needs its key, and .*secret\.key does not exist"):
                await without.get_token()


@pytest.mark.rest
async def test_a_renewal_is_stored_once_the_database_is_back(postgres: Postgres, database: str) -> None:
    with FakeKiro() as fake:
        async with open_rig(fake, database) as rig:
            await put(rig.stored, expired(fake))
            await rig.stored.read("team")
            fake.before[REFRESH] = postgres.stop
            try:
                token = await rig.get_token()
            finally:
                await asyncio.to_thread(postgres.start)
            assert token in fake.access
            async with asyncio.timeout(20):
                while (await look(rig.stored))[0] == 1:  # noqa: ASYNC110 - the database changes it
                    await asyncio.sleep(0.05)
            version, table = await look(rig.stored)
        assert version == 2
        assert table["refreshToken"] in fake.refresh

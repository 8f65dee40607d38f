"""The store on PostgreSQL: a server that restarts, one that hangs, and no password in messages."""

import asyncio
import time

import asyncpg
import pytest

from dragoman.store import StoreError, make_store, open_store
from dragoman.store import postgres as driver
from dragoman.store.cut_calls import CutCallRow
from dragoman.store.database import Session
from dragoman.store.postgres_migrations import MIGRATIONS, VERSION_TABLE
from postgres import PASSWORD, URL_PASSWORD, Postgres
from store.rows import EVER, row


def error_of(url: str) -> str:
    with pytest.raises(StoreError) as refused:
        asyncio.run(open_store(url))
    return str(refused.value)


@pytest.mark.rest
def test_a_server_that_was_away_is_used_again(postgres: Postgres) -> None:
    async def scenario(url: str) -> None:
        store = await open_store(url)
        await asyncio.gather(*(store.append_usage([row(number)]) for number in range(8)))
        await asyncio.to_thread(postgres.stop)
        with pytest.raises(StoreError, match="postgresql://"):
            await store.append_usage([row(8)])
        await asyncio.to_thread(postgres.start)
        await store.append_usage([row(9)])
        assert len(await store.read_usage_rows(EVER)) == 9
        await store.close()

    asyncio.run(scenario(postgres.database()))


@pytest.mark.rest
def test_a_server_that_starts_later_is_used(postgres: Postgres) -> None:
    async def scenario(url: str) -> None:
        store = make_store(url)
        await asyncio.to_thread(postgres.stop)
        try:
            with pytest.raises(StoreError):
                await store.open()
        finally:
            await asyncio.to_thread(postgres.start)
        await store.append_usage([row(1)])
        assert await store.read_usage_rows(EVER) == (row(1),)
        await store.close()

    asyncio.run(scenario(postgres.database()))


def test_a_server_that_hangs_causes_a_timeout(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(url: str) -> None:
        store = await open_store(url)
        monkeypatch.setattr(driver, "WORK_TIMEOUT_S", 0.5)
        frozen = await asyncio.to_thread(postgres.freeze, url)
        assert frozen
        try:
            began = time.monotonic()
            with pytest.raises(StoreError, match="no response within"):
                await store.append_usage([row(1)])
            assert time.monotonic() - began < 20
        finally:
            postgres.thaw(frozen)
        monkeypatch.setattr(driver, "WORK_TIMEOUT_S", 60.0)
        await store.append_usage([row(1), row(2)])
        assert await store.read_usage_rows(EVER) == (row(1), row(2))
        await store.close()

    asyncio.run(scenario(postgres.database()))


@pytest.mark.alone
def test_a_gateway_that_hangs_in_a_transaction_does_not_block_others(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(url: str) -> None:
        other = await open_store(url)
        monkeypatch.setattr(driver, "IDLE_TIMEOUT_S", 1.0)
        hanging = await open_store(url)
        ended = asyncio.Event()

        async def hang(session: Session) -> None:
            await session.lock("usage")
            locked.set()
            await ended.wait()
            await session.lock("usage")

        async def lock(session: Session) -> None:
            await session.lock("usage")

        locked = asyncio.Event()
        task = asyncio.create_task(hanging.database.write(hang))
        await locked.wait()
        await other.database.write(lock)
        ended.set()
        with pytest.raises(StoreError):
            await task
        await hanging.database.write(lock)
        await hanging.close()
        await other.close()

    asyncio.run(scenario(postgres.database()))


def test_no_message_contains_the_password(postgres: Postgres) -> None:
    url = postgres.url("no_such_database")
    wrong = url.replace("postgres:", "nobody:")
    with_option = f"postgresql://nobody@127.0.0.1:{postgres.port}/none?password={URL_PASSWORD}"
    raw = url.replace(URL_PASSWORD, PASSWORD)
    port = url.replace(str(postgres.port), "none")
    for message in (*map(error_of, (url, wrong, with_option, raw, port)), make_store(url).name, make_store(raw).name):
        assert "sk-fake" not in message
        assert "word" not in message.replace("password authentication", "")
        assert "postgresql://" in message


def test_cut_calls_that_name_no_tenant_are_dropped_and_everything_else_stays(postgres: Postgres) -> None:
    async def scenario(url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(VERSION_TABLE)
        for number, step in enumerate(MIGRATIONS[:3], start=1):
            await connection.execute(step)
            await connection.execute("INSERT INTO dragoman.schema_version VALUES ($1)", number)
        await connection.execute("INSERT INTO dragoman.cut_calls VALUES ('one', 'lost', 9999999999)")
        await connection.execute(
            "INSERT INTO dragoman.client_keys (id, name, digest, prefix, last4, created_at)"
            " VALUES ('key_1', 'one', 'digest', 'dgm_', 'wxyz', 5)"
        )
        await connection.close()
        store = await open_store(url)
        assert not await store.has_cuts(0)
        await store.remember_cut(CutCallRow("a", b"one", b"lost"), 1000)
        assert await store.recall_cut("a", (b"one",), 1001) == b"lost"
        assert [key.name for key in await store.list_keys()] == ["one"]
        await store.close()

    asyncio.run(scenario(postgres.database()))


def test_a_database_of_a_newer_version_is_used_only_if_it_says_that_this_one_can(postgres: Postgres) -> None:
    async def scenario(url: str) -> None:
        await (await open_store(url)).close()
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT max(version) FROM dragoman.schema_version") == len(MIGRATIONS)
        await connection.execute("INSERT INTO dragoman.schema_version VALUES (9999)")
        await (await open_store(url)).close()  # it says that this version can use it
        await connection.execute("UPDATE dragoman.compatibility SET compatible_from = 9999")
        await connection.close()
        with pytest.raises(StoreError, match="newer version"):
            await open_store(url)

    asyncio.run(scenario(postgres.database()))


def test_a_user_without_the_right_to_create_schemas_can_use_an_existing_one(postgres: Postgres) -> None:
    async def scenario(url: str) -> None:
        await (await open_store(url)).close()
        connection = await asyncpg.connect(url)
        await connection.execute(f"CREATE ROLE modest LOGIN PASSWORD '{PASSWORD}'")
        await connection.execute("GRANT USAGE ON SCHEMA dragoman TO modest")
        await connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dragoman TO modest")
        await connection.close()
        store = await open_store(url.replace("postgres:", "modest:"))
        await store.append_usage([row(1)])
        assert await store.read_usage_rows(EVER) == (row(1),)
        await store.close()

    asyncio.run(scenario(postgres.database()))


def test_a_manual_change_of_keys_is_noticed(postgres: Postgres) -> None:
    async def scenario(url: str) -> None:
        store = await open_store(url)
        before = await store.version()
        await store.append_usage([row(1)])
        assert await store.version() == before
        connection = await asyncpg.connect(url)
        await connection.execute("DELETE FROM dragoman.client_keys")
        await connection.close()
        assert await store.version() != before
        await store.close()

    asyncio.run(scenario(postgres.database()))

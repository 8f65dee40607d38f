"""The store on SQLite: private files, one thread, short transactions, migrations."""

import asyncio
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import apsw
import pytest

from dragoman.store import Store, StoreError, make_store, open_store
from dragoman.store.cut_calls import CutCallRow
from dragoman.store.database import Session
from dragoman.store.sqlite_migrations import MIGRATIONS
from store.rows import row


@asynccontextmanager
async def open_at(path: Path) -> AsyncIterator[Store]:
    store = await open_store(f"sqlite:///{path}")
    try:
        yield store
    finally:
        await store.close()


def error_of(url: str) -> str:
    with pytest.raises(StoreError) as refused:
        asyncio.run(open_store(url))
    return str(refused.value)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


INSERT = "INSERT INTO client_keys (id, name, digest, prefix, last4, created_at) VALUES ($1, $2, $3, $4, $5, $6)"
KEY = ("key_1", "one", b"digest", "dgm_", "last", 1)


async def insert(session: Session) -> None:
    await session.execute(INSERT, *KEY)


async def count(store: Store) -> int:
    return await read(store, "SELECT count(*) FROM client_keys")


async def read(store: Store, statement: str) -> int:
    [found] = await store.database.read(lambda session: session.fetch(int, statement))
    return found


def test_file_and_directory_are_accessible_to_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "share" / "dragoman" / "dragoman.db"

    async def scenario() -> None:
        async with open_at(path) as store:
            await store.database.write(insert)
            names = {file.name for file in path.parent.iterdir()}
            assert names == {"dragoman.db", "dragoman.db-wal", "dragoman.db-shm"}
            assert {mode(file) for file in path.parent.iterdir()} == {0o600}
            assert mode(path.parent) == 0o700

    asyncio.run(scenario())


def test_a_file_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    path.touch(mode=0o644)
    path.chmod(0o644)

    async def scenario() -> None:
        async with open_at(path):
            assert mode(path) == 0o600

    asyncio.run(scenario())


def test_the_store_uses_write_ahead_logging_and_normal_synchronisation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_at(tmp_path / "dragoman.db") as store:
            assert await store.database.read(lambda session: session.fetch(str, "PRAGMA journal_mode")) == ["wal"]
            assert await read(store, "PRAGMA synchronous") == 1

    asyncio.run(scenario())


def test_the_schema_is_created_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        for _ in range(2):
            async with open_at(tmp_path / "dragoman.db") as store:
                assert await read(store, "PRAGMA user_version") == len(MIGRATIONS)

    asyncio.run(scenario())


def test_cut_calls_that_name_no_tenant_are_dropped_and_everything_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    with closing(apsw.Connection(str(path))) as older:
        for step in MIGRATIONS[:3]:
            older.execute(step)
        older.execute("PRAGMA user_version = 3")
        older.execute(INSERT, KEY)
        older.execute("INSERT INTO cut_calls (digest, lost, expires_at) VALUES (x'01', x'02', 9999999999)")

    async def scenario() -> None:
        async with open_at(path) as store:
            assert not await store.has_cuts(0)
            await store.remember_cut(CutCallRow("a", b"\x01", b"lost"), 1000)
            assert await store.recall_cut("a", (b"\x01",), 1001) == b"lost"
            assert await count(store) == 1

    asyncio.run(scenario())


def test_a_file_of_a_newer_version_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 9999")
    newer.close()
    assert "newer version" in error_of(f"sqlite:///{path}")


def test_a_file_of_a_newer_version_is_used_if_it_says_that_this_one_can(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    asyncio.run(open_and_close(path))
    with closing(apsw.Connection(str(path))) as newer:
        assert newer.execute("SELECT compatible_from FROM compatibility").fetchall() == [(21,)]
        newer.execute("PRAGMA user_version = 9999")
    asyncio.run(open_and_close(path))
    with closing(apsw.Connection(str(path))) as newer:
        assert newer.pragma("user_version") == 9999
        newer.execute("UPDATE compatibility SET compatible_from = 9999")
    assert "newer version" in error_of(f"sqlite:///{path}")


async def open_and_close(path: Path) -> None:
    async with open_at(path):
        pass


def test_an_error_names_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    path.write_text("not a database, but long enough to be mistaken for one " * 40)
    assert str(path) in error_of(f"sqlite:///{path}")


def test_an_error_names_a_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in error_of(f"sqlite:///{tmp_path}/file/dragoman.db")


def test_a_store_that_could_not_be_opened_is_opened_by_a_later_operation(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "in the way").touch()
        store = make_store(f"sqlite:///{tmp_path / 'in the way' / 'dragoman.db'}")
        with pytest.raises(StoreError):
            await store.list_keys()
        (tmp_path / "in the way").unlink()
        assert await store.list_keys() == ()
        await store.close()

    asyncio.run(scenario())


def test_an_unknown_scheme_is_refused() -> None:
    message = error_of("mysql://user:sk-fake@host/db")
    assert "sqlite:///PATH" in message
    assert "sk-fake" not in message


def test_a_failed_write_is_rolled_back_and_the_store_stays_usable(tmp_path: Path) -> None:
    async def insert_and_fail(session: Session) -> None:
        await insert(session)
        raise LookupError("changed my mind")

    async def scenario() -> None:
        async with open_at(tmp_path / "dragoman.db") as store:
            with pytest.raises(LookupError):
                await store.database.write(insert_and_fail)
            assert await count(store) == 0
            await store.database.write(insert)
            with pytest.raises(StoreError, match="UNIQUE"):
                await store.database.write(insert)
            assert await count(store) == 1

    asyncio.run(scenario())


def test_the_event_loop_runs_while_the_store_waits_for_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"

    async def scenario(store: Store) -> None:
        other = apsw.Connection(str(path))  # not with sqlite3, whose locks apsw does not see here
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(store.database.write(insert))
        for _ in range(30):
            await asyncio.sleep(0.01)
        assert not writing.done()
        other.execute("COMMIT")
        await writing
        assert await count(store) == 1
        other.close()

    async def run() -> None:
        async with open_at(path) as store:
            await scenario(store)

    asyncio.run(run())


def test_the_version_changes_with_the_keys_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "dragoman.db"
        async with open_at(path) as mine, open_at(path) as theirs:
            before = await mine.version()
            await theirs.database.write(insert)
            after = await mine.version()
            assert after != before
            await theirs.append_usage([row(1)])
            assert await mine.version() == after

    asyncio.run(scenario())

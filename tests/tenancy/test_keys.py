"""Client keys: what is stored, which are valid, and how soon a revocation takes effect."""

import asyncio
import hashlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config.secret import Secret
from dragoman.store import StoreError, open_store
from dragoman.tenancy.keys import ENVIRONMENT_KEY, Keyring, NameTaken, UnknownKey
from dragoman.translate.protocols import find_client_keys
from waiting import wait_until_async

CREATE_IN_ANOTHER_PROCESS = """
import asyncio, sys
from dragoman.tenancy.keys import Keyring
from dragoman.store import open_store

async def main():
    store = await open_store(sys.argv[1])
    for name in sys.argv[2:]:
        created = await Keyring(store).create(name)
        print(created.secret.reveal())
    await store.close()

asyncio.run(main())
"""


@asynccontextmanager
async def keyring_at(path: Path, environment_key: Secret | None = None) -> AsyncIterator[Keyring]:
    store = await open_store(f"sqlite:///{path}")
    try:
        yield Keyring(store, environment_key)
    finally:
        await store.close()


def change_elsewhere(path: Path, statement: str) -> None:
    """By the library that the store uses too: within one process, two libraries do not see each other's locks."""
    other = apsw.Connection(str(path))
    other.set_busy_timeout(20_000)
    other.execute(statement)
    other.close()


def test_a_key_is_valid_and_similar_ones_are_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as keyring:
            created = await keyring.create("laptop")
            plain = created.secret.reveal().encode()
            assert keyring.check(plain) == created.row.id
            for wrong in (plain[:-1], plain + b"x", plain.swapcase(), b" " + plain, plain.replace(b"dgm_", b"")):
                assert keyring.check(wrong) is None

    asyncio.run(scenario())


def test_keys_have_256_random_bits_and_differ(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as keyring:
            plains = {(await keyring.create(f"key {number}")).secret.reveal() for number in range(20)}
        assert len(plains) == 20
        assert all(re.fullmatch(r"dgm_[A-Za-z0-9]{43}", plain) for plain in plains)

    asyncio.run(scenario())


def test_no_file_of_the_store_contains_the_plain_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as keyring:
            created = await keyring.create("canary")
            revoked = await keyring.create("revoked canary")
            await keyring.revoke("revoked canary")
            keyring.check(created.secret.reveal().encode())
            await keyring.touch()
            assert_no_file_holds(created.secret.reveal(), revoked.secret.reveal())
        assert_no_file_holds(created.secret.reveal(), revoked.secret.reveal())

    def assert_no_file_holds(*plains: str) -> None:
        files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert b"canary" in b"".join(files.values())
        for plain in plains:
            digest = hashlib.sha256(plain.encode()).digest()
            assert any(digest in content for content in files.values())
            for content in files.values():
                assert plain.encode() not in content
                assert plain[8:-4].encode() not in content

    asyncio.run(scenario())


def test_only_prefix_and_last_four_are_listed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as keyring:
            created = await keyring.create("laptop")
            plain = created.secret.reveal()
            (row,) = await keyring.list()
            assert (row.name, row.prefix, row.last4) == ("laptop", plain[:8], plain[-4:])
            assert row.revoked_at is None
            assert plain not in repr(created)
            assert plain not in str(created)

    asyncio.run(scenario())


def test_the_first_start_makes_one_key_and_the_second_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as keyring:
            first = await keyring.create_first()
            assert first is not None
            assert first.row.name == "first"
        async with keyring_at(tmp_path / "keys.db") as keyring:
            assert await keyring.create_first() is None
            assert keyring.check(first.secret.reveal().encode()) == first.row.id

    asyncio.run(scenario())


def test_revoking_every_key_does_not_bring_a_first_key_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as keyring:
            await keyring.create_first()
            await keyring.revoke("first")
            assert await keyring.create_first() is None
            assert keyring.is_empty

    asyncio.run(scenario())


def test_a_key_from_the_environment_needs_no_store() -> None:
    async def scenario() -> None:
        keyring = Keyring(None, Secret("sk-fake-environment"))
        assert keyring.check(b"sk-fake-environment") == ENVIRONMENT_KEY
        assert keyring.check(b"sk-fake-environmen") is None
        assert await keyring.create_first() is None
        await keyring.watch()
        await keyring.touch()
        with pytest.raises(StoreError, match="no store"):
            await keyring.create("more")

    asyncio.run(scenario())


def test_a_key_from_the_environment_survives_a_refresh_beside_stored_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db", Secret("sk-fake-environment")) as keyring:
            created = await keyring.create("laptop")
            assert keyring.check(b"sk-fake-environment") == ENVIRONMENT_KEY
            assert keyring.check(created.secret.reveal().encode()) == created.row.id
            assert len(await keyring.list()) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("sample", ["", "  ", "changeme", "changeme_proxy_secret", "your-api-key-here", "dgm_..."])
def test_a_sample_value_is_not_a_key(sample: str) -> None:
    with pytest.raises(ValueError, match="sample"):
        Keyring(None, Secret(sample))


def test_an_empty_keyring_accepts_no_key() -> None:
    keyring = Keyring(None)
    assert keyring.is_empty
    assert keyring.check(b"") is None
    assert keyring.check(None) is None
    assert keyring.check(b"anything") is None


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes_may_be_presented(presented: bytes) -> None:
    assert Keyring(None, Secret("sk-fake-grüße")).check(presented) is None


def test_a_key_beyond_ascii_is_compared_as_bytes() -> None:
    assert Keyring(None, Secret("sk-fake-grüße")).check("sk-fake-grüße".encode()) == ENVIRONMENT_KEY


def test_a_revoked_key_is_rejected_at_once_and_its_name_is_free_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as keyring:
            old = await keyring.create("laptop")
            with pytest.raises(NameTaken):
                await keyring.create("laptop")
            assert (await keyring.revoke("laptop")).id == old.row.id
            assert keyring.check(old.secret.reveal().encode()) is None
            new = await keyring.create("laptop")
            assert (await keyring.revoke(new.row.id)).id == new.row.id
            with pytest.raises(UnknownKey):
                await keyring.revoke("laptop")
            assert [row.revoked_at is None for row in await keyring.list()] == [False, False]

    asyncio.run(scenario())


def test_a_revocation_by_another_process_takes_effect(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as server:
            created = await server.create("laptop")
            plain = created.secret.reveal().encode()
            watching = asyncio.create_task(server.watch(poll_s=0.02))
            await asyncio.sleep(0.1)
            assert server.check(plain) == created.row.id
            change_elsewhere(tmp_path / "keys.db", "UPDATE client_keys SET revoked_at = 1 WHERE name = 'laptop'")
            await wait_until_async(lambda: server.check(plain) is None)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(scenario())


def test_keys_made_by_other_processes_meanwhile_are_all_seen(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"

    async def create_elsewhere(*names: str) -> list[bytes]:
        command = (sys.executable, "-c", CREATE_IN_ANOTHER_PROCESS, url, *names)
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        output, _ = await process.communicate()
        assert process.returncode == 0
        return output.split()

    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as server:
            watching = asyncio.create_task(server.watch(poll_s=0.02))
            elsewhere = asyncio.gather(create_elsewhere("a1", "a2", "a3"), create_elsewhere("b1", "b2", "b3"))
            mine = [(await server.create(f"c{number}")).secret.reveal().encode() for number in range(20)]
            plains = [plain for part in await elsewhere for plain in part]
            assert len(plains) == 6
            await wait_until_async(lambda: all(server.check(plain) for plain in [*mine, *plains]))
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(scenario())


def test_many_first_starts_at_once_make_one_key(tmp_path: Path) -> None:
    script = CREATE_IN_ANOTHER_PROCESS.replace(
        "    for name in sys.argv[2:]:\n        created = await Keyring(store).create(name)\n",
        "    created = await Keyring(store).create_first()\n    if created:\n",
    )
    command = (sys.executable, "-c", script, f"sqlite:///{tmp_path / 'new' / 'keys.db'}")
    starts = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    outputs = [start.communicate()[0] for start in starts]
    assert [start.returncode for start in starts] == [0, 0, 0, 0]
    assert len(b"".join(outputs).split()) == 1


def test_known_keys_stay_valid_while_the_store_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as keyring:
            created = await keyring.create("laptop")
            watching = asyncio.create_task(keyring.watch(poll_s=0.01))
            await asyncio.sleep(0.05)
            change_elsewhere(tmp_path / "keys.db", "ALTER TABLE key_changes RENAME TO gone")
            await wait_until_async(lambda: bool(caplog.records))
            assert not watching.done()
            assert keyring.check(created.secret.reveal().encode()) == created.row.id
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(scenario())
    assert "could not be read" in caplog.text


def test_use_is_recorded_without_a_query_per_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_store(f"sqlite:///{tmp_path / 'keys.db'}")
        keyring = Keyring(store, clock=lambda: 1_800_000_000.5)
        used = await keyring.create("used")
        await keyring.create("idle")
        for _ in range(3):
            keyring.check(used.secret.reveal().encode())
        assert [row.last_used_at for row in await keyring.list()] == [None, None]
        await keyring.touch()
        assert [row.last_used_at for row in await keyring.list()] == [1_800_000_000, None]
        await store.close()

    asyncio.run(scenario())


def test_use_is_stored_once_a_minute(tmp_path: Path) -> None:
    async def scenario() -> None:
        now = [1_800_000_000.0]
        store = await open_store(f"sqlite:///{tmp_path / 'keys.db'}")
        keyring = Keyring(store, clock=lambda: now[0])
        created = await keyring.create("laptop")
        watching = asyncio.create_task(keyring.watch(poll_s=0.01))
        keyring.check(created.secret.reveal().encode())
        await asyncio.sleep(0.05)
        assert (await keyring.list())[0].last_used_at is None
        now[0] += 61
        async with asyncio.timeout(20):
            while (used := (await keyring.list())[0].last_used_at) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert used == 1_800_000_061
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["", "   ", "two\nlines", "\x1b[31mred"])
def test_a_name_that_would_garble_a_table_is_rejected(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as keyring:
            with pytest.raises(ValueError, match="printable"):
                await keyring.create(name)

    asyncio.run(scenario())


def test_a_name_is_a_value_and_never_sql(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyring_at(tmp_path / "keys.db") as keyring:
            name = "x'); DROP TABLE client_keys; --"
            await keyring.create(name)
            with pytest.raises(UnknownKey):
                await keyring.revoke("' OR 1=1 --")
            assert [row.name for row in await keyring.list()] == [name]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "query", "keys"),
    [
        ([(b"authorization", b"Bearer k1")], "", [b"k1"]),
        ([(b"authorization", b"bearer   k1 ")], "", [b"k1"]),
        ([(b"authorization", b"BEARER k\xff")], "", [b"k\xff"]),
        ([(b"x-api-key", b"k2")], "", [b"k2"]),
        ([(b"api-key", b"k2")], "", [b"k2"]),
        ([(b"x-goog-api-key", b" k3 ")], "", [b"k3"]),
        ([], "key=k4", [b"k4"]),
        ([], "alt=sse&key=a%2Bb%C3%A9", [b"a+b\xc3\xa9"]),
        ([(b"authorization", b"Bearer k1"), (b"x-api-key", b"k2")], "key=k4", [b"k1", b"k2", b"k4"]),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"k2")], "", [b"k2"]),
        ([(b"authorization", b"Bearer "), (b"x-api-key", b"")], "key=k4", [b"k4"]),
        ([(b"authorization", b"Bearer")], "", []),
        ([(b"authorization", b"k1")], "", []),
        ([], "monkey=k4&key=&keys=k5", []),
        ([], "", []),
    ],
)
def test_keys_are_found_where_any_protocol_puts_them(
    fields: list[tuple[bytes, bytes]], query: str, keys: list[bytes]
) -> None:
    assert list(find_client_keys(tuple(fields), query)) == keys

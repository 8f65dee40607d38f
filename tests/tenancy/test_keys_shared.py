"""Client keys that several gateways share, in either kind of store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from msgspec.structs import replace

from dragoman.config.limits import Limits
from dragoman.store import Store, open_store
from dragoman.store.limit_tables import LimitRow, StoredPolicies
from dragoman.tenancy.keys import CLIENT_GRANT, LOOKUPS_PER_S, Keyring, NameTaken, digest_presented
from dragoman.tenancy.policies import KeySettings, read_settings
from postgres import Postgres
from waiting import wait_until_async


@asynccontextmanager
async def gateway(url: str) -> AsyncIterator[Keyring]:
    """Its keys, followed as a running gateway follows them."""
    store = await open_store(url)
    keyring = Keyring(store)
    watching = asyncio.create_task(keyring.watch(poll_s=0.02))
    try:
        yield keyring
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await store.close()


def test_a_key_of_one_gateway_is_valid_at_the_other_until_revoked(store_url: str) -> None:
    async def scenario() -> None:
        async with gateway(store_url) as mine, gateway(store_url) as theirs:
            created = await theirs.create("laptop")
            plain = created.secret.reveal().encode()
            await wait_until_async(lambda: mine.check(plain) == created.row.id)
            await theirs.revoke("laptop")
            await wait_until_async(lambda: mine.check(plain) is None)

    asyncio.run(scenario())


def test_a_key_that_another_gateway_has_just_made_is_looked_up(store_url: str) -> None:
    async def scenario() -> None:
        now = 1000.0
        async with await open_store(store_url) as store:
            mine, theirs = Keyring(store, clock=lambda: now), Keyring(store)
            laptop = await theirs.create("laptop")
            [digest] = digest_presented([laptop.secret.reveal().encode()])
            assert mine.find_valid(digest) is None
            assert await mine.look_up(digest) == laptop.row.id
            assert mine.find_valid(digest) == laptop.row.id
            for number in range(LOOKUPS_PER_S - 1):
                assert await mine.look_up(b"%d" % number) is None
            phone = await theirs.create("phone")
            [digest] = digest_presented([phone.secret.reveal().encode()])
            assert await mine.look_up(digest) is None  # no more in this second
            now += 1.0
            assert await mine.look_up(digest) == phone.row.id
            await theirs.revoke("phone")
            await mine.refresh()
            assert await mine.look_up(digest) is None

    asyncio.run(scenario())


class LateStore:
    """A store whose first answer about limits comes late."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_read, self.may_answer = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def read_policies(self) -> StoredPolicies:
        found = await self._store.read_policies()
        if not self.is_read.is_set():
            self.is_read.set()
            await self.may_answer.wait()
        return found


def test_an_answer_that_comes_late_does_not_undo_a_change(store_url: str) -> None:
    async def scenario() -> None:
        async with await open_store(store_url) as store:
            late = LateStore(store)
            keyring = Keyring(cast(Store, late))
            reading = asyncio.create_task(keyring.refresh())
            await late.is_read.wait()
            await store.set_limits(LimitRow("all", "all", Limits(concurrent=0)))
            await keyring.refresh()
            assert keyring.policies.has_limits
            late.may_answer.set()
            await reading
            assert keyring.policies.has_limits

    asyncio.run(scenario())


def test_a_key_whose_requests_are_to_end_is_named_to_the_other_gateway(store_url: str) -> None:
    async def scenario() -> None:
        async with gateway(store_url) as mine, gateway(store_url) as theirs:
            ended: list[set[str]] = []
            mine.on_ended = lambda keys: ended.append(set(keys))
            settings = KeySettings(models=("echo",))
            phone = await theirs.create("phone", replace(CLIENT_GRANT, settings=settings))
            laptop = await theirs.create("laptop")
            await theirs.revoke("laptop")
            revoked = await theirs.revoke("phone", ends_requests=True)
            assert read_settings(revoked.settings) == settings
            await wait_until_async(lambda: {phone.row.id} in ended)
            assert laptop.row.id not in ended[-1]

    asyncio.run(scenario())


def test_a_name_is_taken_for_all_gateways(store_url: str) -> None:
    async def scenario() -> None:
        async with gateway(store_url) as mine, gateway(store_url) as theirs:
            first = await theirs.create_first()
            assert first is not None
            assert await mine.create_first() is None
            with pytest.raises(NameTaken):
                await mine.create("first")

    asyncio.run(scenario())


@pytest.mark.rest
def test_known_keys_stay_valid_while_the_database_is_unreachable(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(url: str) -> None:
        async with gateway(url) as keyring, gateway(url) as theirs:
            created = await keyring.create("laptop")
            plain = created.secret.reveal().encode()
            await asyncio.to_thread(postgres.stop)
            await wait_until_async(lambda: "could not be read" in caplog.text)
            assert keyring.check(plain) == created.row.id
            await asyncio.to_thread(postgres.start)
            await theirs.revoke("laptop")
            await wait_until_async(lambda: keyring.check(plain) is None)

    asyncio.run(scenario(postgres.database()))
    assert "sk-fake" not in caplog.text

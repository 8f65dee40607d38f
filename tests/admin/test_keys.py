"""Client keys in a real store, and what a running gateway makes of them."""

import asyncio
from pathlib import Path

import pytest

from dragoman.admin.errors import Conflict, InvalidArgument, NotFound
from dragoman.admin.keys import (
    check_with_gateway,
    create_key,
    find_key,
    open_keyring,
    revoke_key,
    wait_until_accepted,
    wait_until_rejected,
)
from dragoman.config import Config, Secret, load
from gateway import running

ECHO = '[providers.echo]\nkind = "echo"\n'


def config_in(directory: Path, port: int = 1) -> Config:
    file = directory / "command.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{directory}/store.db"\n[server]\nport = {port}\n')
    return load(str(file), {}, directory, directory)


def test_keys_are_created_listed_found_and_revoked(tmp_path: Path) -> None:
    config = config_in(tmp_path)

    async def run() -> None:
        async with open_keyring(config) as keyring:
            first, second = await create_key(keyring, None), await create_key(keyring, "laptop")
            assert [row.name for row in await keyring.list()] == ["key-1", "laptop"]
            revoked = await revoke_key(keyring, "laptop")
            assert (revoked.id, revoked.revoked_at is not None) == (second.row.id, True)
            assert (await create_key(keyring, None)).row.name == "key-3"
        assert await find_key(config, first.secret) == first.row
        assert await find_key(config, second.secret) == revoked
        assert await find_key(config, Secret("dgm_unknown")) is None

    asyncio.run(run())


def test_each_error_has_its_kind(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_keyring(config_in(tmp_path)) as keyring:
            await create_key(keyring, "laptop")
            with pytest.raises(Conflict, match="laptop"):
                await create_key(keyring, "laptop")
            with pytest.raises(InvalidArgument):
                await create_key(keyring, " ")
            with pytest.raises(NotFound, match="phone"):
                await revoke_key(keyring, "phone")

    asyncio.run(run())


def test_a_gateway_with_the_same_store_accepts_a_new_key_and_rejects_a_revoked_one(tmp_path: Path) -> None:
    with running(ECHO, tmp_path, stored=("first",)) as gateway:
        config = config_in(tmp_path, gateway.port)

        async def run() -> None:
            async with open_keyring(config) as keyring:
                created = await create_key(keyring, "second")
                answer = await wait_until_accepted(config, created.secret)
                assert (answer.root, answer.is_accepted) == (gateway.url, True)
                await revoke_key(keyring, "second")
                await wait_until_rejected(config)
            assert not (await check_with_gateway(config, created.secret)).is_accepted

        asyncio.run(run())


def test_without_a_gateway_nothing_is_waited_for(tmp_path: Path) -> None:
    answer = asyncio.run(wait_until_accepted(config_in(tmp_path), Secret("dgm_any")))
    assert (answer.root, answer.is_accepted) == (None, False)
    asyncio.run(wait_until_rejected(config_in(tmp_path)))


def test_a_gateway_with_another_store_does_not_accept_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.admin.keys.ACCEPT_TIMEOUT_S", 0.2)
    with running(ECHO, tmp_path) as gateway:
        answer = asyncio.run(wait_until_accepted(config_in(tmp_path, gateway.port), Secret("dgm_elsewhere")))
    assert (answer.root, answer.is_accepted) == (gateway.url, False)

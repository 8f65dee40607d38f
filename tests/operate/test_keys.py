"""Client keys in a real store, and through a running gateway whose admin key the shell has."""

import asyncio
from pathlib import Path

import pytest

import asking
from dragoman.config.load import ConfigSource
from dragoman.config.secret import Secret
from dragoman.config.settings import Config
from dragoman.operate import AdminError, Conflict, InvalidArgument, NotFound
from dragoman.operate.keys import (
    KEYS,
    KeyEditor,
    RemoteKeys,
    StoredKeys,
    check_with_gateway,
    find_key,
    open_keyring,
    wait_until_accepted,
    wait_until_rejected,
)
from dragoman.tenancy.keys import Grant, KeyRole, Scope
from gateway import KEY, running
from server.api.rig import ECHO


def config_in(directory: Path, port: int = 1) -> Config:
    file = directory / "command.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{directory}/store.db"\n[server]\nport = {port}\n')
    return ConfigSource(str(file), {}, directory, directory).read()


def test_keys_are_created_listed_found_and_revoked(tmp_path: Path) -> None:
    config = config_in(tmp_path)

    async def run() -> None:
        async with open_keyring(config) as keyring:
            first, second = await KeyEditor(keyring).create(None), await KeyEditor(keyring).create("laptop")
            assert [row.name for row in await keyring.list()] == ["key-1", "laptop"]
            revoked = await KeyEditor(keyring).revoke("laptop")
            assert (revoked.id, revoked.revoked_at is not None) == (second.row.id, True)
            assert (await KeyEditor(keyring).create(None)).row.name == "key-3"
        assert await find_key(config, first.secret) == first.row
        assert await find_key(config, second.secret) == revoked
        assert await find_key(config, Secret("dgm_unknown")) is None

    asyncio.run(run())


def test_each_error_has_its_kind(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_keyring(config_in(tmp_path)) as keyring:
            await KeyEditor(keyring).create("laptop")
            with pytest.raises(Conflict, match="laptop"):
                await KeyEditor(keyring).create("laptop")
            with pytest.raises(InvalidArgument):
                await KeyEditor(keyring).create(" ")
            with pytest.raises(NotFound, match="phone"):
                await KeyEditor(keyring).revoke("phone")

    asyncio.run(run())


def test_a_gateway_with_the_same_store_accepts_a_new_key_and_rejects_a_revoked_one(tmp_path: Path) -> None:
    with running(ECHO, tmp_path, stored=("first",)) as gateway:
        config = config_in(tmp_path, gateway.port)

        async def run() -> None:
            async with open_keyring(config) as keyring:
                created = await KeyEditor(keyring).create("second")
                answer = await wait_until_accepted(gateway.url, created.secret)
                assert (answer.root, answer.is_accepted) == (gateway.url, True)
                await KeyEditor(keyring).revoke("second")
                await wait_until_rejected(gateway.url)
                async with asyncio.timeout(60):  # the next look at the store is late on a busy machine
                    while (await check_with_gateway(gateway.url, created.secret)).is_accepted:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)

        asyncio.run(run())


def test_without_a_gateway_nothing_is_waited_for() -> None:
    answer = asyncio.run(wait_until_accepted(None, Secret("dgm_any")))
    assert (answer.root, answer.is_accepted) == (None, False)
    asyncio.run(wait_until_rejected(None))


def test_a_gateway_with_another_store_does_not_accept_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.operate.keys.ACCEPT_TIMEOUT_S", 0.2)
    with running(ECHO, tmp_path) as gateway:
        answer = asyncio.run(wait_until_accepted(gateway.url, Secret("dgm_elsewhere")))
    assert (answer.root, answer.is_accepted) == (gateway.url, False)


def shell_config(directory: Path, port: int, key: str | None) -> Config:
    file = directory / "command.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{directory}/other.db"\n[server]\nport = {port}\n')
    return ConfigSource(str(file), {} if key is None else {"DRAGOMAN_API_KEY": key}, directory, directory).read()


def test_a_gateway_that_runs_makes_and_changes_its_own_keys(tmp_path: Path) -> None:
    async def run(config: Config, root: str | None) -> list[str]:
        async with KEYS.open(config, root) as keys:
            assert isinstance(keys, RemoteKeys)
            made = await keys.create("a b/c", Grant(KeyRole.ADMIN, frozenset({Scope.USAGE_READ}), 2_000_000_000))
            rotated = await keys.rotate("a b/c", 60) if "/" not in made.row.name else await keys.rotate(made.row.id, 60)
            assert (rotated.row.id, rotated.row.version) == (made.row.id, 2)
            assert rotated.secret != made.secret
            assert (made.row.scopes, made.row.expires_at) == ("usage:read", 2_000_000_000)
            with pytest.raises(AdminError, match="already exists"):
                await keys.create("a b/c")
            revoked = await keys.revoke(made.row.id)
            assert revoked.revoked_at is not None
            return [row.name for row in await keys.list()]

    with running(ECHO, tmp_path, stored=["someone"]) as gateway:
        assert asyncio.run(run(shell_config(tmp_path, gateway.port, KEY), gateway.url)) == ["someone", "a b/c"]
        actions = [row["action"] for row in asking.send(gateway, "GET", "/api/v1/audit").json["audit"]]
    assert actions == ["keys.revoke", "keys.create.failed", "keys.rotate", "keys.create"]


def test_a_key_that_may_not_administer_the_gateway_leaves_the_store(tmp_path: Path) -> None:
    async def run(config: Config, root: str | None) -> list[str]:
        async with KEYS.open(config, root) as keys:
            assert isinstance(keys, StoredKeys)
            made = await keys.create("mine")
            assert (await keys.rotate("mine", 0)).row.id == made.row.id
            assert (await keys.revoke("mine")).revoked_at is not None
            return [row.name for row in await keys.list()]

    with running(ECHO, tmp_path, stored=["someone"]) as gateway:
        assert asyncio.run(run(shell_config(tmp_path, gateway.port, gateway.keys["someone"]), gateway.url)) == ["mine"]
        assert asyncio.run(run(shell_config(tmp_path, gateway.port, None), gateway.url)) == ["mine", "mine"]
    assert asyncio.run(run(shell_config(tmp_path, 1, KEY), None)) == ["mine", "mine", "mine"]


def test_a_list_of_several_pages_is_read_to_its_end(tmp_path: Path) -> None:
    async def run(config: Config, root: str | None) -> list[str]:
        async with KEYS.open(config, root) as keys:
            assert isinstance(keys, RemoteKeys)
            return [row.name for row in await keys.list()]

    names = [f"key {number}" for number in range(101)]
    with running(ECHO, tmp_path, stored=names) as gateway:
        assert asyncio.run(run(shell_config(tmp_path, gateway.port, KEY), gateway.url)) == names

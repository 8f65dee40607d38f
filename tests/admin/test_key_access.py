"""Keys through a running gateway where the shell's key may administer it, else in the store."""

import asyncio
from pathlib import Path

import pytest

from dragoman.accounts.keys import Grant, KeyRole, Scope
from dragoman.admin.errors import AdminError
from dragoman.admin.key_access import RemoteKeys, StoredKeys, open_key_access
from dragoman.config import Config, load
from gateway import KEY, running
from http_api.rig import ECHO, call


def config_in(directory: Path, port: int, key: str | None) -> Config:
    file = directory / "command.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{directory}/other.db"\n[server]\nport = {port}\n')
    return load(str(file), {} if key is None else {"DRAGOMAN_API_KEY": key}, directory, directory)


def test_a_gateway_that_runs_makes_and_changes_its_own_keys(tmp_path: Path) -> None:
    async def run(config: Config) -> list[str]:
        async with open_key_access(config) as keys:
            assert isinstance(keys, RemoteKeys)
            made = await keys.create("a b/c", Grant(KeyRole.ADMIN, frozenset({Scope.USAGE_READ}), 2_000_000_000))
            rotated = await keys.rotate("a b/c", 60) if "/" not in made.row.name else await keys.rotate(made.row.id, 60)
            assert (rotated.row.id, rotated.row.version) == (made.row.id, 2)
            assert rotated.secret != made.secret
            assert (made.row.scopes, made.row.expires_at) == ("usage:read", 2_000_000_000)
            with pytest.raises(AdminError, match="exists already"):
                await keys.create("a b/c")
            revoked = await keys.revoke(made.row.id)
            assert revoked.revoked_at is not None
            return [row.name for row in await keys.list()]

    with running(ECHO, tmp_path, stored=["someone"]) as gateway:
        assert asyncio.run(run(config_in(tmp_path, gateway.port, KEY))) == ["someone", "a b/c"]
        actions = [row["action"] for row in call(gateway, "GET", "/api/v1/audit").json["audit"]]
    assert actions == ["keys.revoke", "keys.create", "keys.rotate", "keys.create"]


def test_a_key_that_may_not_administer_the_gateway_leaves_the_store(tmp_path: Path) -> None:
    async def run(config: Config) -> list[str]:
        async with open_key_access(config) as keys:
            assert isinstance(keys, StoredKeys)
            made = await keys.create("mine")
            assert (await keys.rotate("mine", 0)).row.id == made.row.id
            assert (await keys.revoke("mine")).revoked_at is not None
            return [row.name for row in await keys.list()]

    with running(ECHO, tmp_path, stored=["someone"]) as gateway:
        assert asyncio.run(run(config_in(tmp_path, gateway.port, gateway.keys["someone"]))) == ["mine"]
        assert asyncio.run(run(config_in(tmp_path, gateway.port, None))) == ["mine", "mine"]
    assert asyncio.run(run(config_in(tmp_path, 1, KEY))) == ["mine", "mine", "mine"]


def test_a_list_of_several_pages_is_read_to_its_end(tmp_path: Path) -> None:
    async def run(config: Config) -> list[str]:
        async with open_key_access(config) as keys:
            assert isinstance(keys, RemoteKeys)
            return [row.name for row in await keys.list()]

    names = [f"key {number}" for number in range(101)]
    with running(ECHO, tmp_path, stored=names) as gateway:
        assert asyncio.run(run(config_in(tmp_path, gateway.port, KEY))) == names

"""A command administers the gateway that runs if its key may, else the configured store."""

from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate import AdminError
from dragoman.operate.admin_access import open_admin, open_keyring
from dragoman.operate.gateway.running_gateway import GatewayClient, GatewayRefused
from dragoman.store.limit_tables import TEAM
from dragoman.tenancy.keys import Keyring
from fakes.service import json_answer
from fakes.upstream import FakeUpstream

PATH = "/api/v1/teams"
TEAMS = '[[teams]]\nname = "core"\nlimits = { usd_per_day = 5 }\n'


def make_config(directory: Path, key: str | None = "dgm_fake") -> Config:
    file = directory / "command.toml"
    file.write_text(f'{TEAMS}[store]\nurl = "sqlite:///{directory}/store.db"\n')
    environ = {} if key is None else {"DRAGOMAN_API_KEY": key}
    return ConfigSource(str(file), environ, directory, directory).read()


async def test_the_keyring_of_the_store_has_what_the_file_sets(tmp_path: Path) -> None:
    async with open_keyring(make_config(tmp_path)) as keyring:
        await keyring.refresh()
        assert list(keyring.policies.teams) == ["core"]
        assert [str(name) for name, _ in keyring.policies.find_limits(TEAM, "core").items()] == ["usd_per_day"]


async def test_a_gateway_that_lets_this_key_read_is_used(tmp_path: Path) -> None:
    with FakeUpstream() as gateway:
        gateway.intercept = lambda request: json_answer({"teams": []})
        async with open_admin(make_config(tmp_path), f"http://127.0.0.1:{gateway.port}", PATH) as admin:
            assert isinstance(admin, GatewayClient)
    assert [request.path for request in gateway.requests] == [PATH]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_the_store_is_used_where_the_gateway_refuses_this_key(status: int, tmp_path: Path) -> None:
    with FakeUpstream() as gateway:
        gateway.intercept = lambda request: json_answer({"error": {"message": "no"}}, status)
        async with open_admin(make_config(tmp_path), f"http://127.0.0.1:{gateway.port}", PATH) as admin:
            assert isinstance(admin, Keyring)


async def test_another_refusal_of_the_gateway_is_an_error(tmp_path: Path) -> None:
    with FakeUpstream() as gateway:
        gateway.intercept = lambda request: json_answer({"error": {"message": "broken"}}, 500)
        with pytest.raises(GatewayRefused):
            async with open_admin(make_config(tmp_path), f"http://127.0.0.1:{gateway.port}", PATH):
                pass


@pytest.mark.parametrize("root", [None, "http://127.0.0.1:1"])
async def test_the_store_is_used_where_no_gateway_runs(root: str | None, tmp_path: Path) -> None:
    async with open_admin(make_config(tmp_path), root, PATH) as admin:
        assert isinstance(admin, Keyring)


async def test_a_gateway_that_is_named_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(AdminError, match="DRAGOMAN_API_KEY"):
        async with open_admin(make_config(tmp_path, None), "http://127.0.0.1:1", PATH, named=True):
            pass

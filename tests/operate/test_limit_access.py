"""Limits and teams for commands: of the store with an audit row for each change, and of a gateway by its paths."""

from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate import InvalidArgument
from dragoman.operate.limit_access import (
    LIMITS,
    TEAMS,
    RemoteLimitAccess,
    StoredLimitAccess,
    StoredTeams,
    merge_values,
)
from dragoman.operate.teams import NewTeam, TeamFields
from dragoman.store import open_store
from fakes.service import json_answer
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest


def make_config(directory: Path, store_url: str) -> Config:
    file = directory / "command.toml"
    file.write_text(f'[store]\nurl = "{store_url}"\n')
    return ConfigSource(str(file), {"DRAGOMAN_API_KEY": "dgm_fake"}, directory, directory).read()


async def test_without_a_gateway_the_store_is_changed_and_each_change_is_in_the_audit_log(
    store_url: str, tmp_path: Path
) -> None:
    config = make_config(tmp_path, store_url)
    async with TEAMS.open(config, None) as teams:
        assert isinstance(teams, StoredTeams)
        await teams.create(NewTeam(name="core"))
        assert (await teams.change("core", TeamFields(members=("dev",)))).members == ("dev",)
    async with LIMITS.open(config, None) as limits:
        assert isinstance(limits, StoredLimitAccess)
        await limits.change("team", "core", {"usd_per_day": 5, "concurrent": 2})
        assert (await limits.change("team", "core", {"concurrent": None})).limits == {"usd_per_day": 5}
        assert [row.limit for row in await limits.list("team", "core", effective=False)] == ["usd_per_day"]
        await limits.remove("team", "core")
        assert await limits.list(None, None, effective=False) == []
    async with await open_store(store_url) as store:
        actions = [row.action for row in await store.list_audit_rows(2**62, 10)]
    assert actions == ["limits.remove", "limits.set", "limits.set", "teams.change", "teams.create"]


async def test_a_change_is_tried_again_if_another_one_came_before(tmp_path: Path) -> None:
    stored = {"scope": "user", "name": "a b", "limits": {"concurrent": 2}, "in_file": {}, "version": 4}
    refusals = iter((412, 200))

    def answer(request: ReceivedRequest) -> Answer:
        if request.method == "PUT":
            return json_answer(stored, next(refusals))
        return json_answer(stored if "a%20b" in request.path else {"limits": [], "next": None})

    with FakeUpstream() as gateway:
        gateway.intercept = answer
        config = make_config(tmp_path, f"sqlite:///{tmp_path}/absent.db")
        async with LIMITS.open(config, f"http://127.0.0.1:{gateway.port}") as limits:
            assert isinstance(limits, RemoteLimitAccess)
            await limits.change("user", "a b", {"usd_per_day": 5})
    puts = [request for request in gateway.requests if request.method == "PUT"]
    assert [request.path for request in puts] == ["/api/v1/limits/user/a%20b"] * 2
    assert puts[1].json == {"concurrent": 2, "usd_per_day": 5}


def test_a_value_that_is_no_limit_names_it() -> None:
    assert merge_values({"concurrent": 2}, {"concurrent": None, "usd_per_day": 5}).usd_per_day == 5
    with pytest.raises(InvalidArgument) as refused:
        merge_values({}, {"concurrent": -1})
    assert refused.value.field == "concurrent"

"""Teams in a store of each kind: a user is in one, the file's are not changed, one with keys is not removed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.config.limits import LimitValues
from dragoman.config.settings import LimitSettings, TeamSettings
from dragoman.operate import Conflict, InvalidArgument, NotFound, VersionMismatch
from dragoman.operate.keys import StoredKeys
from dragoman.operate.teams import NewTeam, TeamFields, Teams
from dragoman.store import open_store
from dragoman.store.limit_tables import PolicyKey, StoredPolicies, TeamRow
from dragoman.tenancy.keys import Grant, Keyring
from dragoman.tenancy.policies import Policies
from laws import assert_linear_function


@asynccontextmanager
async def open_teams(url: str) -> AsyncIterator[Keyring]:
    """Open the keys of a store, with one team of the file."""
    async with await open_store(url) as store:
        keyring = Keyring(store)
        keyring.policies.adopt(LimitSettings(), (TeamSettings(name="ops", members=("anna",)),))
        await keyring.refresh()
        yield keyring


async def test_a_team_is_created_changed_and_removed(store_url: str) -> None:
    async with open_teams(store_url) as keyring:
        teams = Teams(keyring.store, keyring.policies)
        await teams.create(NewTeam(name="core", members=("ben",), limits=LimitValues(usd_per_day=5)))
        await keyring.refresh()
        made = teams.describe(teams.find("core"))
        assert (made.members, made.limits, made.origin, made.version) == (("ben",), {"usd_per_day": 5}, "store", 1)
        await teams.change("core", TeamFields(models=("claude-*",)), 1)
        await keyring.refresh()
        changed = teams.describe(teams.find("core"))
        assert (changed.members, changed.models, changed.version) == (("ben",), ("claude-*",), 2)
        with pytest.raises(VersionMismatch):
            await teams.remove("core", 1)
        await teams.remove("core", 2)
        await keyring.refresh()
        assert [(team.name, team.origin) for team in teams.list()] == [("ops", "file")]


async def test_what_does_not_fit_is_refused(store_url: str) -> None:
    async with open_teams(store_url) as keyring:
        teams = Teams(keyring.store, keyring.policies)
        with pytest.raises(Conflict, match="ops"):
            await teams.create(NewTeam(name="ops"))
        with pytest.raises(Conflict, match="one team"):
            await teams.create(NewTeam(name="core", members=("anna",)))
        with pytest.raises(InvalidArgument, match="twice"):
            await teams.create(NewTeam(name="core", members=("ben", "ben")))
        with pytest.raises(Conflict, match=r"dragoman\.toml"):
            await teams.change("ops", TeamFields(members=()))
        with pytest.raises(NotFound, match="cor"):
            teams.find("cor")


async def test_a_team_that_has_a_key_is_not_removed(store_url: str) -> None:
    async with open_teams(store_url) as keyring:
        teams = Teams(keyring.store, keyring.policies)
        await teams.create(NewTeam(name="core"))
        await keyring.refresh()
        await keyring.create("laptop", Grant(team="core"))
        await keyring.refresh()
        with pytest.raises(Conflict, match="laptop"):
            await teams.remove("core")


async def test_keys_are_shown_with_the_team_of_their_user(store_url: str) -> None:
    async with open_teams(store_url) as keyring:
        keys = StoredKeys(keyring)
        await keys.create("laptop", Grant(user="anna"))
        assert (await keys.find("laptop")).team == "ops"
        assert [row.team for row in await keys.list()] == ["ops"]
        # It is still the user's, and not the key's own.
        keyring.policies.adopt(LimitSettings(), ())
        assert (await keys.find("laptop")).team == ""


async def test_listing_teams_takes_linear_time_in_teams_and_keys(tmp_path: Path) -> None:
    async with await open_store(f"sqlite:///{tmp_path}/store.db") as store:

        def make(size: int) -> Teams:
            keys = tuple(PolicyKey(f"key_{at}", f"key {at}", "client", "", f"team-{at}", "") for at in range(size))
            policies = Policies()
            policies.publish(StoredPolicies(keys, tuple(TeamRow(key.team) for key in keys)))
            return Teams(store, policies)

        assert [team.keys for team in make(2).list()] == [1, 1]
        assert_linear_function(lambda teams: teams.list(), make, 300)

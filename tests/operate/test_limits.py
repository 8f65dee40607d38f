"""Limits in a store of each kind: set, listed with where they come from, and set back."""

import pytest

from dragoman.config.limits import NO_LIMITS, LimitName, Limits, LimitValues
from dragoman.config.settings import LimitSettings, ProviderLimits
from dragoman.operate import Conflict, InvalidArgument, NotFound, VersionMismatch
from dragoman.operate.limits import (
    Forgiveness,
    LimitTarget,
    ScopedLimits,
    find_target,
    list_limits,
    read_levels,
)
from dragoman.store import open_store
from dragoman.store.client_keys import KeyId
from dragoman.store.limit_tables import LimitRow, PolicyKey, StoredPolicies
from dragoman.tenancy.keys import Grant, Keyring
from dragoman.tenancy.policies import Policies
from laws import assert_linear_function

USER = LimitTarget("user", "dev", "dev")


async def test_limits_are_set_listed_and_removed(store_url: str) -> None:
    async with await open_store(store_url) as store:
        keyring = Keyring(store)
        policies = keyring.policies
        limits = ScopedLimits(store, policies)
        policies.adopt(LimitSettings(user=LimitValues(usd_per_day=20)), ())
        await keyring.create("laptop", Grant(user="dev"))
        await keyring.refresh()
        await limits.replace(USER, Limits(concurrent=3), None)
        await keyring.refresh()
        rows = await read_levels(policies, None, list_limits(policies, effective=True))
        assert [(row.scope, row.name, row.limit, row.value, row.origin, row.set_for) for row in rows] == [
            ("user", "dev", "concurrent", 3, "store", ""),
            ("user", "dev", "usd_per_day", 20, "file", "user:*"),
        ]
        assert {row.spent for row in rows} == {None}
        stored = await limits.read(USER)
        assert (stored.limits, stored.in_file) == ({"concurrent": 3}, {})
        with pytest.raises(VersionMismatch):
            await limits.replace(USER, NO_LIMITS, stored.version + 1)
        await limits.remove(USER)
        await keyring.refresh()
        assert [one.limit for one in list_limits(policies)] == [LimitName.USD_PER_DAY]
        with pytest.raises(Conflict, match=r"dragoman\.toml"):
            await limits.remove(LimitTarget("user", "*", "*"))


async def test_a_name_is_found_or_refused(store_url: str) -> None:
    async with await open_store(store_url) as store:
        keyring = Keyring(store)
        made = await keyring.create("laptop")
        await keyring.refresh()
        policies = keyring.policies
        limits = ScopedLimits(store, policies)
        assert find_target(policies, (), "key", "laptop") == LimitTarget("key", made.row.id, "laptop")
        for scope, name in (("key", "phone"), ("team", "core")):
            with pytest.raises(NotFound, match=name):
                find_target(policies, (), scope, name)
        with pytest.raises(InvalidArgument, match="one amount"):
            await limits.forgive(USER, Forgiveness())
        with pytest.raises(InvalidArgument, match="name one"):
            await limits.forgive(LimitTarget("user", "*", "*"), Forgiveness(usd=1))
        done = await limits.forgive(USER, Forgiveness(usd=1.5, reason="a fault of ours"))
        assert (done.unit, done.amount, done.until) == ("usd", 1.5, None)


def make_policies(size: int) -> Policies:
    """Return the policies of so many keys, each of a user and with a limit of its own."""
    keys = tuple(PolicyKey(f"key_{at}", f"key {at}", "client", f"user-{at}", "", "") for at in range(size))
    limits = [LimitRow("key", key.id, Limits(usd_per_day=9)) for key in keys]
    limits += [LimitRow("user", "*", Limits(concurrent=9))]
    policies = Policies()
    policies.publish(StoredPolicies(keys, (), tuple(limits)))
    return policies


def test_listing_limits_takes_linear_time_in_keys_and_users() -> None:
    assert_linear_function(lambda policies: list_limits(policies, effective=True), make_policies, 300)


def test_the_policy_of_a_key_is_made_with_its_first_request() -> None:
    """With very many keys, each change would hold up all requests if it made the policies of all of them."""
    policies = make_policies(3)
    assert [scope.name for scope in policies.find(KeyId("key_1")).scopes] == ["user:user-1", "key:key_1"]
    assert list(policies._policies) == ["environment", "key_1"]


async def test_limits_of_providers_are_listed_by_their_names_in_any_order(store_url: str) -> None:
    async with await open_store(store_url) as store:
        policies = Keyring(store).policies
        policies.adopt(LimitSettings(providers=(ProviderLimits(names=("b", "a"), usd_per_day=1),)), ())
        for name in ("a,b", "b,a"):
            assert [one.target.name for one in list_limits(policies, "provider", name)] == ["a,b"]
        assert list_limits(policies, "provider", "a") == []

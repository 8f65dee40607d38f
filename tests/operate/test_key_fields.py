"""What is set for a key is checked, and the refusal names the field."""

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.config.limits import LimitName, LimitValues
from dragoman.config.settings import LimitSettings, TeamSettings
from dragoman.operate import InvalidArgument
from dragoman.operate.key_fields import (
    KeyFields,
    check_grant,
    check_membership,
    describe_fields,
    make_change,
    make_grant,
)
from dragoman.store.client_keys import KeyId, KeyRow
from dragoman.store.limit_tables import PolicyKey, StoredPolicies
from dragoman.tenancy.keys import Grant, KeyRole, Scope
from dragoman.tenancy.policies import Policies

ROW = KeyRow(KeyId("key_1"), "laptop", "", "", 0, None, None, role=KeyRole.CLIENT.value)


@pytest.fixture
def policies() -> Policies:
    made = Policies()
    made.adopt(LimitSettings(), (TeamSettings(name="core", members=("dev",)), TeamSettings(name="ops")))
    made.publish(StoredPolicies(()))
    return made


def test_a_key_is_granted_what_its_fields_say(policies: Policies) -> None:
    fields = KeyFields(user="dev", models=("claude-*",), strict=True, limits=LimitValues(usd_per_day=2))
    grant = make_grant(policies, KeyRole.CLIENT, fields)
    assert (grant.user, grant.team, grant.settings.models, grant.settings.strict) == ("dev", "", ("claude-*",), True)
    assert [name for name, _ in grant.limits.items()] == [LimitName.USD_PER_DAY]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (KeyFields(expires_at=1), "expires_at"),
        (KeyFields(default_thinking="loud"), "default_thinking"),
        (KeyFields(team="cor"), "team"),
        (KeyFields(user="dev", team="ops"), "team"),
        (KeyFields(default_model="a\x00"), "default_model"),
    ],
)
def test_a_refusal_names_the_field(fields: KeyFields, field: str, policies: Policies) -> None:
    with pytest.raises(InvalidArgument) as refused:
        make_change(policies, ROW, fields)
    assert refused.value.field == field


def test_what_is_not_given_stays_and_null_sets_back(policies: Policies) -> None:
    first = make_grant(policies, KeyRole.CLIENT, KeyFields(user="dev", expires_at=4_000_000_000))
    assert first.expires_at == 4_000_000_000
    row = KeyRow(KeyId("key_1"), "laptop", "", "", 0, None, None, role="client", user="dev", expires_at=4_000_000_000)
    change = make_change(policies, row, KeyFields(expires_at=None))
    assert (change.user, change.expires_at, change.limits) == ("dev", None, None)
    assert describe_fields(KeyFields(expires_at=None, team=UNSET)) == {"expires_at": None}


def test_a_token_of_one_team_has_no_scope_beyond_it_and_makes_no_requests(policies: Policies) -> None:
    with pytest.raises(InvalidArgument, match="about all teams"):
        check_grant(policies, Grant(KeyRole.ADMIN, frozenset({Scope.CONFIG_WRITE}), team="core"))
    with pytest.raises(InvalidArgument, match="leave user out"):
        make_grant(policies, KeyRole.ADMIN, KeyFields(user="dev"))
    check_membership(policies, "dev", "core")


def test_keys_of_a_user_who_is_no_member_are_in_one_team(policies: Policies) -> None:
    policies.publish(StoredPolicies((PolicyKey("key_1", "laptop", "client", "eve", "core", ""),)))
    for row in (replace(ROW, id=KeyId("key_2")), replace(ROW, id=KeyId("key_2"), user="eve")):
        with pytest.raises(InvalidArgument, match='"laptop" of the user "eve" is in the team "core"') as refused:
            make_change(policies, row, KeyFields(user="eve", team="ops"))
        assert refused.value.field == "team"
    with pytest.raises(InvalidArgument, match="laptop"):
        check_grant(policies, Grant(user="eve", team="ops"))
    in_ops = replace(ROW, id=KeyId("key_2"), team="ops")
    with pytest.raises(InvalidArgument, match="laptop"):  # the user alone is changed
        make_change(policies, in_ops, KeyFields(user="eve"))
    assert make_change(policies, replace(ROW, user="eve", team="core"), KeyFields(team="ops")).team == "ops"
    for team in ("core", ""):
        assert make_change(policies, replace(ROW, id=KeyId("key_2")), KeyFields(user="eve", team=team)).team == team

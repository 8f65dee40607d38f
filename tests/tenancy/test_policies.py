"""What is set for a key: scopes, defaults and what replaces them, the file before the store, and models."""

from msgspec.structs import replace

from dragoman.config.limits import NO_LIMITS, LimitName, Limits, LimitValues
from dragoman.config.settings import LimitSettings, ProviderLimits, TeamSettings
from dragoman.store.limit_tables import LimitRow, PolicyKey, StoredPolicies, TeamRow
from dragoman.tenancy.keys import ENVIRONMENT_KEY, KeyId
from dragoman.tenancy.policies import UNLIMITED, KeyPolicy, KeySettings, Policies, encode_settings
from tables import each_row

NANO = 10**9
KEY = PolicyKey("key_1", "laptop", "client", "dev", "", "")


def make_policies(
    settings: LimitSettings | None = None,
    teams: tuple[TeamSettings, ...] = (),
    stored: StoredPolicies | None = None,
) -> Policies:
    policies = Policies()
    policies.adopt(settings or LimitSettings(), teams)
    policies.publish(stored or StoredPolicies((KEY,)))
    return policies


def scopes_of(policies: Policies, key: str = "key_1") -> dict[str, Limits]:
    return {scope.name: scope.limits for scope in policies.find(KeyId(key)).scopes}


def test_without_limits_nothing_is_set() -> None:
    policies = make_policies()
    assert not policies.has_limits
    assert policies.find(KeyId("key_1")).scopes == ()
    assert policies.find(KeyId("unknown")) == policies.find(ENVIRONMENT_KEY) == UNLIMITED
    assert policies.find_provider_scopes("kiro") == ()


def test_a_request_counts_in_every_scope_that_it_falls_into() -> None:
    settings = LimitSettings(
        concurrent=9,
        user=LimitValues(usd_per_day=20),
        key=LimitValues(usd_per_day=10),
        providers=(
            ProviderLimits(names=("kiro-2", "kiro"), credits_per_month=1000),
            ProviderLimits(names=("kiro",), requests_per_min=5),
        ),
    )
    team = TeamSettings(name="core", members=("dev",), limits=LimitValues(usd_per_month=500))
    policies = make_policies(settings, (team,))
    assert policies.has_limits
    assert scopes_of(policies) == {
        "all": Limits(concurrent=9),
        "team:core": Limits(usd_per_month=500 * NANO),
        "user:dev": Limits(usd_per_day=20 * NANO),
        "key:key_1": Limits(usd_per_day=10 * NANO),
    }
    policy = policies.find(KeyId("key_1"))
    assert (policy.user, policy.team) == ("dev", "core")
    assert [scope.title for scope in policy.scopes][1:] == ['the team "core"', 'the user "dev"', 'the key "laptop"']
    assert scopes_of(policies, ENVIRONMENT_KEY) == {"all": Limits(concurrent=9)}
    assert [scope.name for scope in policies.find_provider_scopes("kiro")] == ["provider:kiro,kiro-2", "provider:kiro"]
    assert [scope.name for scope in policies.find_provider_scopes("kiro-2")] == ["provider:kiro,kiro-2"]


@each_row(
    ("own", "each_user", "every", "expected"),
    [
        (Limits(), Limits(), Limits(usd_per_day=3), Limits(usd_per_day=3)),
        (Limits(), Limits(usd_per_day=2), Limits(usd_per_day=3), Limits(usd_per_day=2)),
        (Limits(usd_per_day=1), Limits(usd_per_day=2), Limits(usd_per_day=3), Limits(usd_per_day=1)),
        (Limits(concurrent=0), Limits(usd_per_day=2), Limits(usd_per_day=3, usd_per_week=4), None),
    ],
)
def test_a_default_is_replaced_limit_by_limit(
    own: Limits, each_user: Limits, every: Limits, expected: Limits | None
) -> None:
    rows = (LimitRow("user", "dev", own), LimitRow("each_user", "core", each_user), LimitRow("user", "*", every))
    stored = StoredPolicies((KEY,), (TeamRow("core", ("dev",)),), rows)
    found = scopes_of(make_policies(stored=stored))["user:dev"]
    assert found == (expected or Limits(concurrent=0, usd_per_day=2, usd_per_week=4))


def test_a_user_with_a_key_in_a_team_has_the_same_limits_with_every_key() -> None:
    first, second = replace(KEY, id="key_2"), replace(KEY, id="key_3", team="core")
    rows = LimitRow("each_user", "core", Limits(usd_per_day=2)), LimitRow("user", "*", Limits(usd_per_day=3))
    policies = make_policies(stored=StoredPolicies((KEY, first, second), (TeamRow("core"),), rows))
    for key in ("key_1", "key_2", "key_3"):
        assert scopes_of(policies, key)["user:dev"] == Limits(usd_per_day=2), key
    assert [policies.find(KeyId(key)).team for key in ("key_1", "key_2", "key_3")] == ["", "", "core"]


def test_the_file_counts_before_the_store() -> None:
    settings = LimitSettings(usd_per_day=1)
    row = LimitRow("all", "all", Limits(usd_per_day=5 * NANO, concurrent=2))
    policies = make_policies(settings, stored=StoredPolicies((KEY,), (), (row,)))
    assert scopes_of(policies)["all"] == Limits(usd_per_day=NANO, concurrent=2)
    listed = [(one.limit, one.amount, one.origin) for one in policies.list_limits()]
    assert listed == [(LimitName.USD_PER_DAY, NANO, "file"), (LimitName.CONCURRENT, 2, "store")]
    policies.adopt(LimitSettings(), ())
    assert scopes_of(policies)["all"] == row.limits
    policies.publish(StoredPolicies((KEY,)))
    assert not policies.has_limits


def test_a_key_is_in_the_team_that_names_its_user_or_else_in_its_own() -> None:
    teams = TeamRow("core", ("dev",), models=("claude-*",)), TeamRow("ops")
    other = replace(KEY, id="key_2", user="", team="ops")
    policies = make_policies(stored=StoredPolicies((KEY, other), teams))
    assert [policies.find(KeyId(key)).team for key in ("key_1", "key_2")] == ["core", "ops"]
    assert policies.find(KeyId("key_1")).team_models == ("claude-*",)
    in_file = TeamSettings(name="core", members=("eve",))
    policies.adopt(LimitSettings(), (in_file,))  # the file's team of this name replaces the store's
    assert policies.find(KeyId("key_1")).team == ""
    assert (policies.teams["core"].origin, policies.teams["ops"].origin) == ("file", "store")
    # A user who has a key in a team becomes a member of another one in the file.
    policies.publish(StoredPolicies((replace(KEY, team="ops"),), teams))
    assert policies.find(KeyId("key_1")).team == "ops"
    policies.adopt(LimitSettings(), (TeamSettings(name="core", members=("dev",), limits=LimitValues(concurrent=3)),))
    assert (policies.find(KeyId("key_1")).team, [*scopes_of(policies)]) == ("core", ["team:core"])


def test_the_settings_of_a_key_are_in_its_policy() -> None:
    settings = KeySettings(strict=True, capture="off", max_output_tokens=7, default_model="m", metadata={"a": "b"})
    key = replace(KEY, settings=encode_settings(settings))
    found = make_policies(stored=StoredPolicies((key,))).find(KeyId("key_1"))
    assert (found.is_strict, found.capture, found.max_output_tokens) == (True, "off", 7)
    assert (found.default_model, dict(found.metadata)) == ("m", {"a": "b"})
    assert encode_settings(KeySettings()) == ""


@each_row(
    ("policy", "allowed"),
    [
        (KeyPolicy(), {("best", "a", "x"), ("b/y", "b", "y")}),
        (KeyPolicy(models=("best",)), {("best", "a", "x")}),
        (KeyPolicy(models=("b/*",)), {("b/y", "b", "y")}),
        (KeyPolicy(models=("*",), team_models=("best",)), {("best", "a", "x")}),
        (KeyPolicy(models=("best",), team_models=("b/*",)), set[tuple[str, str, str]]()),
        (KeyPolicy(providers=("b",)), {("b/y", "b", "y")}),
        (KeyPolicy(providers=("?",), team_providers=("a",)), {("best", "a", "x")}),
    ],
)
def test_key_and_team_must_both_allow_a_target(policy: KeyPolicy, allowed: set[tuple[str, str, str]]) -> None:
    targets = {("best", "a", "x"), ("b/y", "b", "y")}
    assert {target for target in targets if policy.allows(*target)} == allowed


def test_limits_of_teams_and_keys_that_are_gone_count_nowhere() -> None:
    rows = LimitRow("team", "gone", Limits(usd_per_day=1)), LimitRow("key", "key_0", Limits(usd_per_day=1))
    policies = make_policies(stored=StoredPolicies((KEY,), (), rows))
    assert scopes_of(policies) == {}
    assert policies.find_limits("team", "core") == NO_LIMITS

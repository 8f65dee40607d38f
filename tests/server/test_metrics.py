"""What a scrape has of a provider: its credentials, and how much of its allowances is used."""

from dragoman.net.client import HttpClient
from dragoman.server.metrics import provider_samples
from dragoman.upstreams.account_state import AccountLimits, AllowanceWindow
from dragoman.upstreams.credentials.cooldowns import ALL_MODELS, CredentialCooldown
from dragoman.upstreams.credentials.pool import Member, Pool
from dragoman.upstreams.provider import Account, Auth, Endpoint, Provider

NOW = 1_800_000_000.0


def provider(
    limits: AccountLimits | None = None, pool: Pool | None = None, members: tuple[Provider, ...] = ()
) -> Provider:
    async def authorize(*_: object) -> tuple[tuple[bytes, bytes], ...]:
        return ()

    return Provider(
        name="p",
        kind="codex",
        issuer="openai",
        endpoint=Endpoint("http://127.0.0.1:9", ("responses",), HttpClient().send),
        auth=Auth(authorize),
        account=Account(last_limits=lambda: limits, pool=pool),
        members=members,
    )


def gauges(given: Provider) -> dict[tuple[str, ...], float]:
    return {
        (reading.name.removeprefix("dragoman_"), *reading.labels): reading.values[0]
        for reading in provider_samples("p", given, NOW)
    }


def test_one_credential_is_available_until_its_provider_says_otherwise() -> None:
    assert gauges(provider()) == {
        ("pool_credentials", "p", "available"): 1,
        ("pool_credentials", "p", "cooling_down"): 0,
    }
    parked = gauges(provider(AccountLimits(exhausted_until=NOW + 60)))
    assert parked == {("pool_credentials", "p", "available"): 0, ("pool_credentials", "p", "cooling_down"): 1}
    assert gauges(provider(AccountLimits(exhausted_until=NOW - 60)))["pool_credentials", "p", "available"] == 1


def test_of_several_credentials_those_in_cooldown_are_counted_separately() -> None:
    pool = Pool((Member("a", "first"), Member("b", "second"), Member("c", "third")))
    pool.start_cooldown(0, CredentialCooldown(ALL_MODELS, NOW + 60, "rate_limited"), NOW)
    pool.start_cooldown(1, CredentialCooldown("one-model", NOW + 60, "rate_limited"), NOW)
    found = gauges(provider(pool=pool))
    assert found == {("pool_credentials", "p", "available"): 2, ("pool_credentials", "p", "cooling_down"): 1}


def test_allowances_are_shown_as_a_share_and_only_where_there_is_a_limit() -> None:
    windows = {
        "primary": AllowanceWindow(used_percent=37.5),
        "bonus": AllowanceWindow(used_percent=0.0, unlimited=True),
    }
    member = provider(AccountLimits(windows=windows))
    for given in (member, provider(members=(member,))):
        found = gauges(given)
        assert found["provider_limit_used_ratio", "p", "primary"] == 0.375
        assert ("provider_limit_used_ratio", "p", "bonus") not in found

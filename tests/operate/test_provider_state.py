"""The credentials and models of a running gateway; more over HTTP in tests/server/api/test_state_api.py."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from dragoman.net.client import HttpClient
from dragoman.operate import NotFound
from dragoman.operate.provider_state import describe_models, end_cooldowns, list_accounts, read_quotas
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.account_state import AccountLimits, Quota
from dragoman.upstreams.credentials.cooldowns import CredentialCooldown
from dragoman.upstreams.credentials.pool import Member, Pool
from dragoman.upstreams.provider import Account, Auth, Endpoint, Provider, UnsignedRequest
from gateway import running

NOW = time.time()
TOML = """
[providers.echo]
kind = "echo"
[[models]]
name = "any"
to = ["echo/echo", "gone/x"]
"""


async def _authorize(request: UnsignedRequest) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"authorization", b"Bearer sk-fake-never-shown"),)


def make(name: str, account: Account, members: tuple[Provider, ...] = ()) -> Provider:
    auth = Auth(_authorize, login_command=f"dragoman login {name}", secrets=(b"sk-fake-never-shown",))
    endpoint = Endpoint("http://127.0.0.1:1", ("chat",), HttpClient().send)
    return Provider(name, "kiro", "", endpoint, auth, account=account, members=members)


def make_pooled() -> Provider:
    pool = Pool((Member("a", "1 of 2 (env:A)"), Member("b", "2 of 2 (env:B)")))
    pool.start_cooldown(1, CredentialCooldown("", NOW + 60, "quota"), NOW)
    pool.start_cooldown(0, CredentialCooldown("claude", NOW + 30, "rate_limited"), NOW)
    members = tuple(
        make("kiro", Account(slot=slot, label=member.label, pool=pool, cooldowns=pool))
        for slot, member in enumerate(pool.members)
    )
    return make("kiro", Account(pool=pool), members)


def test_each_credential_has_its_own_cooldowns() -> None:
    spent = make("codex", Account(last_limits=lambda: AccountLimits(exhausted_until=NOW + 5)))
    accounts = list_accounts({"kiro": make_pooled(), "codex": spent}, {"kiro": "HTTP 503"}, NOW)
    first, second = accounts[0].credentials
    assert (first.label, first.is_available) == ("1 of 2 (env:A)", True)
    assert [one.model for one in first.cooldowns] == ["claude"]
    assert (second.is_available, [one.reason for one in second.cooldowns]) == (False, ["quota"])
    assert [one.is_available for one in accounts[1].credentials] == [False]
    assert accounts[1].login_command == "dragoman login codex"
    assert b"never-shown" not in msgspec.json.encode(accounts)


def test_the_cooldowns_of_a_provider_can_be_ended() -> None:
    providers = {"kiro": make_pooled(), "plain": make("plain", Account())}
    assert end_cooldowns(providers, "kiro") == 2
    assert all(one.is_available for one in list_accounts(providers, {}, NOW)[0].credentials)
    assert end_cooldowns(providers, "plain") == 0
    with pytest.raises(NotFound, match="kiro, plain"):
        end_cooldowns(providers, "codex")


def test_an_account_that_cannot_be_read_does_not_hide_the_others() -> None:
    quota = Quota("up", "pro", "credits", 3.0, 10.0, None)

    async def read() -> list[Quota]:
        return [quota]

    async def fail() -> list[Quota]:
        raise RequestError(Failure(Kind.CREDENTIAL, "rejected"))

    providers = {"up": make("up", Account(read_quotas=read)), "down": make("down", Account(read_quotas=fail))}
    report = asyncio.run(read_quotas(providers | {"none": make("none", Account())}))
    assert report.quotas == [quota]
    assert report.problems == {"down": "rejected"}


def test_a_target_that_cools_down_shows_until_when(tmp_path: Path) -> None:
    now = time.time()
    with running(TOML.replace(', "gone/x"', ""), tmp_path) as gateway:
        runtime = gateway.app.gateway.runtime
        cooldowns = runtime.providers["echo"].account.cooldowns
        assert cooldowns is not None
        cooldowns.start_cooldown(0, CredentialCooldown("echo", now + 60, "quota"), now)
        overview = describe_models(runtime, None, now)
        [[target]] = [route.targets for route in overview.routes]
        assert target.cooling_down_until == now + 60
        assert describe_models(runtime, None, now + 61).routes[0].targets[0].cooling_down_until is None
        assert {model.usd_per_million for model in overview.models} == {None}

"""Refresh tokens that rotate, are rejected, or meet a wrong clock, for every kind of Kiro account."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.utils import formatdate
from pathlib import Path

import apsw
import msgspec
import pytest

from dragoman.accounts.credential import format_timestamp
from dragoman.hub.failure import Kind, RequestError
from dragoman.providers.kiro.credential import Credential
from fakes.kiro import FakeKiro, json_answer
from fakes.upstream import Answer, End
from providers.kiro.kiro_kit import Rig, database, ide_file, make_rig, read, row, section, token

ROW = "kirocli:odic:token"
SECRET = "fake-client-secret"


@dataclass(frozen=True)
class Account:
    """Where an account of one kind keeps its tokens, and who renews them."""

    path: str  # of the token service
    leave: Callable[..., Path]  # folder, refresh, access, life_s
    refresh: Callable[[Path], object]  # what is stored


def _desktop(folder: Path, refresh: str, access: str = "aoaFAKE-old", life_s: float = -60.0) -> Path:
    return ide_file(folder / "token.json", refresh=refresh, access=access, life_s=life_s)


def _oidc(folder: Path, refresh: str, access: str = "aoaFAKE-old", life_s: float = -60.0) -> Path:
    (folder / "abc.json").write_bytes(msgspec.json.encode({"clientId": "fake-client", "clientSecret": SECRET}))
    more = {"authMethod": "IdC", "clientIdHash": "abc"}
    return ide_file(folder / "token.json", refresh=refresh, access=access, life_s=life_s, **more)


def _database(folder: Path, refresh: str, access: str = "aoaFAKE-old", life_s: float = -60.0) -> Path:
    path = folder / "data.sqlite3"
    stored = {"access_token": access, "refresh_token": refresh, "expires_at": format_timestamp(time.time() + life_s)}
    if not path.exists():
        registered = {"client_id": "fake-client", "client_secret": SECRET}
        return database(path, {ROW: stored, "kirocli:odic:device-registration": registered})
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE auth_kv SET value = ? WHERE key = ?", (msgspec.json.encode(stored).decode(), ROW))
    connection.close()
    return path


ACCOUNTS = {
    "desktop": Account("/refreshToken", _desktop, lambda path: read(path)["refreshToken"]),
    "oidc": Account("/token", _oidc, lambda path: read(path)["refreshToken"]),
    "database": Account("/token", _database, lambda path: row(path, ROW)["refresh_token"]),
}

accounts = pytest.mark.parametrize("kind", ACCOUNTS)


async def once(rig: Rig) -> Credential:
    return await rig.refresher.get()


@accounts
def test_a_token_that_another_program_has_renewed_is_adopted(tmp_path: Path, kind: str) -> None:
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("r1"))
    with FakeKiro() as fake:
        fake.refresh = set()  # r1 is used up
        fake.before[account.path] = lambda: account.leave(tmp_path, token("r2"), "aoaFAKE-by-another", 3600)
        assert asyncio.run(make_rig(fake, section(path), once)).access_token == "aoaFAKE-by-another"
    assert (fake.counts[account.path], account.refresh(path)) == (1, token("r2"))


@accounts
def test_a_token_that_rotates_during_renewal_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("r1"))
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        fake.before[account.path] = lambda: account.leave(tmp_path, token("r2"), "aoaFAKE-by-another", 3600)
        assert asyncio.run(make_rig(fake, section(path), once)).access_token == "aoaFAKE-access-token-1"
    assert account.refresh(path) == token("r2")


@accounts
def test_a_rejection_is_reported_with_its_remedy_and_not_repeated_at_once(tmp_path: Path, kind: str) -> None:
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("secret"))
    with FakeKiro() as fake:
        fake.refresh = set()

        async def twice(rig: Rig) -> None:
            for _ in range(2):
                with pytest.raises(RequestError, match="dragoman login kiro") as refused:
                    await once(rig)
                assert refused.value.failure.kind is Kind.CREDENTIAL
                assert "secret" not in refused.value.failure.message.replace("secrets", "")

        asyncio.run(make_rig(fake, section(path), twice))
    assert (fake.counts[account.path], account.refresh(path)) == (1, token("secret"))


@accounts
@pytest.mark.parametrize(("status", "failure"), [(429, Kind.RATE_LIMITED), (500, Kind.UPSTREAM)])
def test_a_server_error_does_not_reject_the_token(tmp_path: Path, kind: str, status: int, failure: Kind) -> None:
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("r1"))
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        fake.script(account.path, json_answer({"message": "later"}, status))

        async def twice(rig: Rig) -> str:
            with pytest.raises(RequestError) as refused:
                await once(rig)
            assert refused.value.failure.kind is failure
            return (await once(rig)).access_token

        assert asyncio.run(make_rig(fake, section(path), twice)) == "aoaFAKE-access-token-1"


@accounts
def test_a_response_lost_after_the_rotation_costs_one_more_request(tmp_path: Path, kind: str) -> None:
    """The token is used up and its successor unknown: only a login helps, and nothing is requested until then."""
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("r1"))
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        fake.before[account.path] = fake.refresh.clear
        fake.script(account.path, Answer(headless=True, end=End.RESET))

        async def thrice(rig: Rig) -> list[Kind]:
            kinds = []
            for _ in range(3):
                with pytest.raises(RequestError) as refused:
                    await once(rig)
                kinds.append(refused.value.failure.kind)
            return kinds

        assert asyncio.run(make_rig(fake, section(path), thrice)) == [Kind.LOST, Kind.CREDENTIAL, Kind.CREDENTIAL]
    assert (fake.counts[account.path], account.refresh(path)) == (2, token("r1"))


@accounts
@pytest.mark.parametrize("ahead_s", [7200, -7200])
def test_a_clock_that_is_wrong_costs_one_renewal_at_most(tmp_path: Path, kind: str, ahead_s: float) -> None:
    """Ours is ahead: a living token seems to have ended. Ours is behind: the new one is dated by the service."""
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("r1"), life_s=3600 if ahead_s > 0 else -10_000)
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        answer = json_answer(fake.issue())
        fake.script(account.path, replace(answer, headers=(("date", formatdate(usegmt=True)),)))

        async def thrice(rig: Rig) -> float:
            rig.ahead_s = ahead_s
            found = [await once(rig) for _ in range(3)]
            assert {credential.access_token for credential in found} == {"aoaFAKE-access-token-1"}
            return found[0].expires_at - rig.clock.now()

        assert asyncio.run(make_rig(fake, section(path), thrice)) == pytest.approx(3600, abs=30)
    assert fake.counts[account.path] == 1

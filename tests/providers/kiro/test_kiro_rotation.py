"""Refresh tokens that rotate, are rejected, or meet a wrong clock, for every kind of Kiro account."""

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
from fakes.kiro import FakeKiro, json_answer
from fakes.upstream import Answer, End
from providers.account_kit import get_once
from providers.kiro.kiro_kit import Rig, database, ide_file, read, row, section, token

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


@accounts
def test_a_token_that_another_program_has_renewed_is_adopted(kiro: FakeKiro, tmp_path: Path, kind: str) -> None:
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("r1"))
    kiro.refresh = set()  # r1 is used up
    kiro.before[account.path] = lambda: account.leave(tmp_path, token("r2"), "aoaFAKE-by-another", 3600)
    assert get_once(Rig(kiro, section(path))).access_token == "aoaFAKE-by-another"
    assert (kiro.counts[account.path], account.refresh(path)) == (1, token("r2"))


@accounts
def test_a_token_that_rotates_during_renewal_is_not_overwritten(kiro: FakeKiro, tmp_path: Path, kind: str) -> None:
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("r1"))
    kiro.refresh = {token("r1")}
    kiro.before[account.path] = lambda: account.leave(tmp_path, token("r2"), "aoaFAKE-by-another", 3600)
    assert get_once(Rig(kiro, section(path))).access_token == "aoaFAKE-access-token-1"
    assert account.refresh(path) == token("r2")


@accounts
async def test_a_rejection_is_reported_with_its_remedy_and_not_repeated_at_once(
    kiro: FakeKiro, tmp_path: Path, kind: str
) -> None:
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("secret"))
    kiro.refresh = set()
    async with Rig(kiro, section(path)) as rig:
        for _ in range(2):
            with pytest.raises(RequestError, match="dragoman login kiro") as refused:
                await rig.refresher.get()
            assert refused.value.failure.kind is Kind.CREDENTIAL
            assert "secret" not in refused.value.failure.message.replace("secrets", "")
    assert (kiro.counts[account.path], account.refresh(path)) == (1, token("secret"))


@accounts
@pytest.mark.parametrize(("status", "failure"), [(429, Kind.RATE_LIMITED), (500, Kind.UPSTREAM), (503, Kind.UPSTREAM)])
async def test_a_server_error_does_not_reject_the_token(
    kiro: FakeKiro, tmp_path: Path, kind: str, status: int, failure: Kind
) -> None:
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("r1"))
    kiro.refresh = {token("r1")}
    kiro.script(account.path, json_answer({"message": "later"}, status))
    async with Rig(kiro, section(path)) as rig:
        with pytest.raises(RequestError) as refused:
            await rig.refresher.get()
        assert refused.value.failure.kind is failure
        assert await rig.get_token() == "aoaFAKE-access-token-1"


@accounts
async def test_a_response_lost_after_the_rotation_costs_one_more_request(
    kiro: FakeKiro, tmp_path: Path, kind: str
) -> None:
    """The token is used up and its successor unknown: only a login helps, and nothing is requested until then."""
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("r1"))
    kiro.refresh = {token("r1")}
    kiro.before[account.path] = kiro.refresh.clear
    kiro.script(account.path, Answer(headless=True, end=End.RESET))
    async with Rig(kiro, section(path)) as rig:
        kinds = []
        for _ in range(3):
            with pytest.raises(RequestError) as refused:
                await rig.refresher.get()
            kinds.append(refused.value.failure.kind)
        assert kinds == [Kind.LOST, Kind.CREDENTIAL, Kind.CREDENTIAL]
    assert (kiro.counts[account.path], account.refresh(path)) == (2, token("r1"))


@accounts
@pytest.mark.parametrize("ahead_s", [7200, -7200])
async def test_a_clock_that_is_wrong_costs_one_renewal_at_most(
    kiro: FakeKiro, tmp_path: Path, kind: str, ahead_s: float
) -> None:
    """Ours is ahead: a living token seems to have ended. Ours is behind: the new one is dated by the service."""
    account = ACCOUNTS[kind]
    path = account.leave(tmp_path, token("r1"), life_s=3600 if ahead_s > 0 else -10_000)
    kiro.refresh = {token("r1")}
    answer = json_answer(kiro.issue())
    kiro.script(account.path, replace(answer, headers=(("date", formatdate(usegmt=True)),)))
    async with Rig(kiro, section(path)) as rig:
        rig.ahead_s = ahead_s
        found = [await rig.refresher.get() for _ in range(3)]
        assert {credential.access_token for credential in found} == {"aoaFAKE-access-token-1"}
        assert found[0].expires_at - rig.clock.now() == pytest.approx(3600, abs=30)
    assert kiro.counts[account.path] == 1

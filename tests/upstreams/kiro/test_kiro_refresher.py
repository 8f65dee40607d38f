"""One credential, many requests, and other programs: renewed once, adopted if newer, never overwritten."""

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.utils import formatdate
from pathlib import Path

import apsw
import msgspec
import pytest

from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.upstreams.credentials.credential import format_timestamp, parse_timestamp
from dragoman.upstreams.kiro.credential import Credential
from fakes.kiro import FakeKiro, json_answer
from fakes.upstream import Answer, End
from upstreams.account_kit import as_local, get_once
from upstreams.kiro.kiro_kit import Rig, database, ide_file, read, row, section, token

REFRESH = "/refreshToken"


async def wait_until_settled(rig: Rig) -> Credential:
    """Return a token, once the work in the background has ended."""
    given = await rig.refresher.get()
    for _ in range(2000):
        if rig.refresher._renewal is None:
            return given
        await asyncio.sleep(0.01)
    raise AssertionError("the renewal does not end")


async def test_twenty_requests_with_an_expired_token_make_one_refresh(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    kiro.refresh_delay_s = 0.05
    async with Rig(kiro, section(path)) as rig:
        assert {found.access_token for found in await asyncio.gather(*(rig.refresher.get() for _ in range(20)))} == {
            "aoaFAKE-access-token-1"
        }
    assert kiro.counts[REFRESH] == 1
    assert read(path)["accessToken"] == "aoaFAKE-access-token-1"


async def test_processes_that_share_a_file_make_one_refresh(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    kiro.refresh_delay_s = 0.1

    # each has its own refresher: only the lock beside the file is shared
    async with Rig(kiro, section(path)) as first, Rig(kiro, section(path)) as second:
        assert set(await asyncio.gather(first.get_token(), second.get_token())) == {"aoaFAKE-access-token-1"}
    assert kiro.counts[REFRESH] == 1


async def test_a_newer_token_in_the_file_is_adopted_without_a_refresh(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-1", life_s=3600)
    async with Rig(kiro, section(path)) as rig:
        first = await rig.refresher.get()
        ide_file(path, access="aoaFAKE-2", life_s=9000)  # the IDE renewed it meanwhile
        rig.ahead_s = 3500
        await wait_until_settled(rig)
        assert [first.access_token, await rig.get_token()] == ["aoaFAKE-1", "aoaFAKE-2"]
    assert kiro.counts[REFRESH] == 0


async def test_a_token_is_renewed_ten_minutes_early_while_the_old_one_is_used(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-old", refresh=token("r1"), life_s=590)
    kiro.refresh_delay_s = 0.05
    async with Rig(kiro, section(path)) as rig:
        rig.refresher._current = as_local(rig.refresher._source()).read()
        served = await wait_until_settled(rig)
        assert [served.access_token, await rig.get_token()] == ["aoaFAKE-old", "aoaFAKE-access-token-1"]
    assert kiro.counts[REFRESH] == 1


async def test_a_token_that_is_valid_beyond_the_margin_is_not_renewed(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-old", life_s=610)
    async with Rig(kiro, section(path)) as rig:
        assert (await wait_until_settled(rig)).access_token == "aoaFAKE-old"
    assert kiro.counts[REFRESH] == 0


async def test_tokens_with_a_life_below_the_margin_are_not_renewed_at_every_request(
    kiro: FakeKiro, tmp_path: Path
) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    kiro.life_s = 300
    async with Rig(kiro, section(path)) as rig:
        for _ in range(5):
            await wait_until_settled(rig)
    assert kiro.counts[REFRESH] == 1


def test_a_token_renewed_by_another_but_expired_is_refreshed_once_more(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    kiro.refresh = {token("r2")}
    kiro.before[REFRESH] = lambda: kiro.counts[REFRESH] == 1 and ide_file(path, refresh=token("r2"))
    assert get_once(Rig(kiro, section(path))).access_token == "aoaFAKE-access-token-1"
    assert kiro.counts[REFRESH] == 2
    assert read(path)["accessToken"] == "aoaFAKE-access-token-1"


async def test_a_valid_token_is_used_when_its_refresh_token_is_rejected(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-alive", life_s=120)
    before = path.read_bytes()
    kiro.refresh = set()
    async with Rig(kiro, section(path)) as rig:
        assert {(await wait_until_settled(rig)).access_token for _ in range(3)} == {"aoaFAKE-alive"}
    assert kiro.counts[REFRESH] == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize("refresh", ["aorFAKE-cut", token("cut") + "..."], ids=["short", "with an ellipsis"])
def test_a_truncated_refresh_token_is_reported_and_not_tried(kiro: FakeKiro, tmp_path: Path, refresh: str) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=refresh)
    with pytest.raises(RequestError, match="truncated") as refused:
        get_once(Rig(kiro, section(path)))
    assert kiro.counts[REFRESH] == 0
    assert "aorFAKE" not in str(refused.value)


@pytest.mark.parametrize("given_by", ["the issuer", "the user"])
async def test_a_short_refresh_token_is_tried_if_the_user_or_the_issuer_gave_it(
    kiro: FakeKiro, tmp_path: Path, given_by: str
) -> None:
    """Only what another program has written to its file can be truncated."""
    for number in (1, 2):
        tokens = {"accessToken": f"aoaFAKE-{number}", "refreshToken": f"aorFAKE-{number}", "expiresIn": 3600}
        kiro.script(REFRESH, json_answer(tokens))
    credentials = ide_file(tmp_path / "kiro-auth-token.json") if given_by == "the issuer" else "env:KIRO_REFRESH"
    environ = {"KIRO_REFRESH": "aorFAKE-short", "DRAGOMAN_DATA": str(tmp_path)}
    async with Rig(kiro, section(credentials), environ) as rig:
        assert await rig.get_token() == "aoaFAKE-1"
        assert await rig.refresher.renew()
        assert await rig.get_token() == "aoaFAKE-2"
    assert kiro.counts[REFRESH] == 2


@pytest.mark.parametrize("refresh", ["aorFAKE-cut", token("cut") + "..."], ids=["short", "with an ellipsis"])
def test_an_access_token_with_a_truncated_refresh_token_is_used_until_it_expires(
    kiro: FakeKiro, tmp_path: Path, refresh: str
) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-alive", refresh=refresh, life_s=60.0)
    found = get_once(Rig(kiro, section(path)))
    assert found.access_token == "aoaFAKE-alive"


def test_a_refresh_token_that_is_not_rotated_is_kept(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    kiro.rotates = False
    found = get_once(Rig(kiro, section(path)))
    assert (found.access_token, found.refresh_token) == ("aoaFAKE-access-token-1", token("r1"))
    assert read(path)["refreshToken"] == token("r1")


def test_a_file_that_cannot_be_written_costs_no_request(
    kiro: FakeKiro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))

    def full(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    assert get_once(Rig(kiro, section(path))).access_token == "aoaFAKE-access-token-1"
    assert "kept in memory only: No space left" in caplog.text
    assert sorted(os.listdir(tmp_path)) == [path.name, f"{path.name}.dragoman-lock"]


def test_an_idc_token_is_renewed_with_its_registration(kiro: FakeKiro, tmp_path: Path) -> None:
    (tmp_path / "abc.json").write_text('{"clientId": "fake-client", "clientSecret": "fake-client-secret"}')
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"), authMethod="IdC", clientIdHash="abc")
    assert get_once(Rig(kiro, section(path))).access_token == "aoaFAKE-access-token-1"
    request = next(request for request in kiro.requests if request.path == "/token")
    assert request.json == {
        "clientId": "fake-client",
        "clientSecret": "fake-client-secret",
        "grantType": "refresh_token",
        "refreshToken": token("r1"),
    }


def test_an_expired_registration_is_reported(kiro: FakeKiro, tmp_path: Path) -> None:
    (tmp_path / "abc.json").write_text('{"clientId": "c", "clientSecret": "s", "expiresAt": "2020-01-01T00:00:00Z"}')
    path = ide_file(tmp_path / "token.json", authMethod="IdC", clientIdHash="abc")
    with pytest.raises(RequestError, match="registration has expired"):
        get_once(Rig(kiro, section(path)))
    assert kiro.counts["/token"] == 0


def test_an_external_issuer_gets_a_form(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(
        tmp_path / "token.json",
        refresh=token("r1"),
        authMethod="external_idp",
        tokenEndpoint=f"{kiro.root}/idp/token",
        issuerUrl=kiro.root,
        clientId="fake-client",
        scopes=["openid", "offline_access"],
    )
    assert get_once(Rig(kiro, section(path))).access_token == "aoaFAKE-access-token-1"
    request = next(request for request in kiro.requests if request.path == "/idp/token")
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert b"scope=openid+offline_access" in request.body


@pytest.mark.parametrize(
    ("endpoint", "issuer"),
    [
        ("https://idp.example/token", "https://other.example"),
        ("http://idp.example/token", "http://idp.example"),
        ("", ""),
    ],
)
def test_a_refresh_token_is_sent_only_to_its_issuer_and_only_over_tls(
    kiro: FakeKiro, tmp_path: Path, endpoint: str, issuer: str
) -> None:
    path = ide_file(
        tmp_path / "token.json", authMethod="external_idp", tokenEndpoint=endpoint, issuerUrl=issuer, clientId="c"
    )
    with pytest.raises(RequestError, match="token endpoint"):
        get_once(Rig(kiro, section(path)))
    assert not kiro.requests


def test_a_database_row_is_renewed_in_place(kiro: FakeKiro, tmp_path: Path) -> None:
    entry = {
        "access_token": "aoaFAKE-old",
        "refresh_token": token("r1"),
        "expires_at": "2020-01-01T00:00:00.123456789Z",
    }
    path = database(tmp_path / "data.sqlite3", {"kirocli:social:token": entry})
    assert get_once(Rig(kiro, section(path))).access_token == "aoaFAKE-access-token-1"
    assert row(path, "kirocli:social:token")["access_token"] == "aoaFAKE-access-token-1"


async def test_an_api_key_is_used_unchanged_and_never_renewed(kiro: FakeKiro) -> None:
    environ = {"KIRO_API_KEY": "ksk_fake"}
    async with Rig(kiro, section("env:KIRO_API_KEY"), environ) as rig:
        assert (await rig.get_token(), await rig.refresher.renew()) == ("ksk_fake", False)
    assert not kiro.requests


async def test_twenty_rejections_of_one_token_make_one_refresh(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-revoked", refresh=token("r1"), life_s=3600)

    async def request(rig: Rig, late_s: float) -> bool:
        await rig.refresher.get()
        await asyncio.sleep(late_s)  # some get the refusal long after the first has renewed
        return await rig.refresher.renew()

    async with Rig(kiro, section(path)) as rig:
        assert (await asyncio.gather(*(request(rig, number * 0.01) for number in range(20)))) == [True] * 20
    assert kiro.counts[REFRESH] == 1


async def test_a_slow_clock_is_corrected_by_the_token_service(kiro: FakeKiro, tmp_path: Path) -> None:
    """Two hours behind, every token would seem to live on long after its end."""
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"), life_s=-10_000)
    async with Rig(kiro, section(path)) as rig:
        rig.ahead_s = -7200
        answer = json_answer(kiro.issue())
        kiro.script(REFRESH, type(answer)(**{**answer.__dict__, "headers": (("date", formatdate(usegmt=True)),)}))
        found = await rig.refresher.get()
        assert found.expires_at - rig.clock.now() == pytest.approx(3600, abs=60)
    written = parse_timestamp(str(read(path)["expiresAt"]))
    assert written == pytest.approx(time.time() + 3600, abs=60)


async def test_nothing_secret_is_logged(kiro: FakeKiro, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-alive", refresh=token("r1"), life_s=120)
    for kiro.refresh in (set(), {token("r1")}):
        async with Rig(kiro, section(path)) as rig:
            await wait_until_settled(rig)
    assert "still valid" in caplog.text
    assert "FAKE" not in caplog.text


# Refresh tokens that rotate, are rejected, or meet a wrong clock, for every kind of Kiro account

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
    answer = json_answer(kiro.issue())
    kiro.script(account.path, replace(answer, headers=(("date", formatdate(usegmt=True)),)))
    async with Rig(kiro, section(path)) as rig:
        rig.ahead_s = ahead_s
        found = [await rig.refresher.get() for _ in range(3)]
        assert {credential.access_token for credential in found} == {"aoaFAKE-access-token-1"}
        assert found[0].expires_at - rig.clock.now() == pytest.approx(3600, abs=30)
    assert kiro.counts[account.path] == 1

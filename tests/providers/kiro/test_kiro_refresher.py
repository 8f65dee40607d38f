"""One credential, many requests, and other programs: renewed once, adopted if newer, never overwritten."""

import asyncio
import errno
import logging
import os
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from dragoman.accounts.credential import parse_timestamp
from dragoman.hub.failure import Kind, RequestError
from dragoman.providers.kiro.credential import Credential
from fakes.kiro import FakeKiro, json_answer
from providers.kiro.kiro_kit import Rig, database, ide_file, make_rig, read, row, section, token

REFRESH = "/refreshToken"


async def once(rig: Rig) -> Credential:
    return await rig.refresher.get()


async def wait_until_settled(rig: Rig) -> Credential:
    """Return a token, once the work in the background has ended."""
    given = await rig.refresher.get()
    for _ in range(2000):
        if rig.refresher._renewal is None:
            return given
        await asyncio.sleep(0.01)
    raise AssertionError("the renewal does not end")


def test_twenty_requests_with_an_expired_token_make_one_refresh(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        fake.refresh_delay_s = 0.05

        async def twenty(rig: Rig) -> set[str]:
            return {found.access_token for found in await asyncio.gather(*(once(rig) for _ in range(20)))}

        assert asyncio.run(make_rig(fake, section(path), twenty)) == {"aoaFAKE-access-token-1"}
    assert fake.counts[REFRESH] == 1
    assert read(path)["accessToken"] == "aoaFAKE-access-token-1"


def test_processes_that_share_a_file_make_one_refresh(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        fake.refresh_delay_s = 0.1

        async def both(first: Rig) -> set[str]:
            second = Rig(fake, section(path))  # its own refresher: only the lock beside the file is shared
            found = await asyncio.gather(once(first), once(second))
            await second.http.close()
            return {credential.access_token for credential in found}

        assert asyncio.run(make_rig(fake, section(path), both)) == {"aoaFAKE-access-token-1"}
    assert fake.counts[REFRESH] == 1


def test_a_newer_token_in_the_file_is_adopted_without_a_refresh(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-1", life_s=3600)
    with FakeKiro() as fake:

        async def over_time(rig: Rig) -> list[str]:
            first = await once(rig)
            ide_file(path, access="aoaFAKE-2", life_s=9000)  # the IDE renewed it meanwhile
            rig.ahead_s = 3500
            await wait_until_settled(rig)
            return [first.access_token, (await once(rig)).access_token]

        assert asyncio.run(make_rig(fake, section(path), over_time)) == ["aoaFAKE-1", "aoaFAKE-2"]
    assert fake.counts[REFRESH] == 0


def test_a_token_is_renewed_ten_minutes_early_while_the_old_one_is_used(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-old", refresh=token("r1"), life_s=590)
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        fake.refresh_delay_s = 0.05

        async def twice(rig: Rig) -> list[str]:
            rig.refresher._current = rig.refresher._source().read()
            served = await wait_until_settled(rig)
            return [served.access_token, (await once(rig)).access_token]

        assert asyncio.run(make_rig(fake, section(path), twice)) == ["aoaFAKE-old", "aoaFAKE-access-token-1"]
    assert fake.counts[REFRESH] == 1


def test_a_token_that_is_valid_beyond_the_margin_is_not_renewed(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-old", life_s=610)
    with FakeKiro() as fake:
        assert asyncio.run(make_rig(fake, section(path), wait_until_settled)).access_token == "aoaFAKE-old"
    assert fake.counts[REFRESH] == 0


def test_tokens_with_a_life_below_the_margin_are_not_renewed_at_every_request(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    with FakeKiro() as fake:
        fake.refresh, fake.life_s = {token("r1")}, 300

        async def many(rig: Rig) -> None:
            for _ in range(5):
                await wait_until_settled(rig)

        asyncio.run(make_rig(fake, section(path), many))
    assert fake.counts[REFRESH] == 1


def test_a_token_renewed_by_another_program_is_adopted_when_ours_is_rejected(tmp_path: Path) -> None:
    """Behaviour 25: R1 is invalid because the IDE used it; the file holds R2 and a living token."""
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    with FakeKiro() as fake:
        fake.refresh = set()
        after: list[bytes] = []

        def renew_as_ide() -> None:
            ide_file(path, access="aoaFAKE-by-the-ide", refresh=token("r2"), life_s=3600)
            after.append(path.read_bytes())

        fake.before[REFRESH] = renew_as_ide
        assert asyncio.run(make_rig(fake, section(path), once)).access_token == "aoaFAKE-by-the-ide"
    assert fake.counts[REFRESH] == 1
    assert path.read_bytes() == after[0]


def test_a_token_renewed_by_another_but_expired_is_refreshed_once_more(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    with FakeKiro() as fake:
        fake.refresh = {token("r2")}
        fake.before[REFRESH] = lambda: fake.counts[REFRESH] == 1 and ide_file(path, refresh=token("r2"))
        assert asyncio.run(make_rig(fake, section(path), once)).access_token == "aoaFAKE-access-token-1"
    assert fake.counts[REFRESH] == 2
    assert read(path)["accessToken"] == "aoaFAKE-access-token-1"


def test_a_file_that_the_ide_rotates_during_a_refresh_is_not_overwritten(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        fake.before[REFRESH] = lambda: ide_file(path, refresh=token("r2"), access="aoaFAKE-by-the-ide", life_s=3600)
        found = asyncio.run(make_rig(fake, section(path), once))
    assert found.access_token == "aoaFAKE-access-token-1"  # ours is as good, and in memory
    assert read(path)["refreshToken"] == token("r2")
    assert read(path)["accessToken"] == "aoaFAKE-by-the-ide"


def test_a_valid_token_is_used_when_its_refresh_token_is_rejected(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-alive", life_s=120)
    before = path.read_bytes()
    with FakeKiro() as fake:
        fake.refresh = set()

        async def thrice(rig: Rig) -> set[str]:
            return {(await wait_until_settled(rig)).access_token for _ in range(3)}

        assert asyncio.run(make_rig(fake, section(path), thrice)) == {"aoaFAKE-alive"}
    assert fake.counts[REFRESH] == 1
    assert path.read_bytes() == before


def test_an_expired_token_whose_refresh_is_rejected_is_a_credential_failure(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("secret"))
    with FakeKiro() as fake:
        fake.refresh = set()

        async def twice(rig: Rig) -> list[RequestError]:
            refusals = []
            for _ in range(2):
                with pytest.raises(RequestError) as refused:
                    await once(rig)
                refusals.append(refused.value)
            return refusals

        first, second = asyncio.run(make_rig(fake, section(path), twice))
    assert first.failure.kind is second.failure.kind is Kind.CREDENTIAL
    assert "dragoman login kiro" in first.failure.message
    assert "secret" not in first.failure.message
    assert fake.counts[REFRESH] == 1  # a refused refresh token is not tried again at once


@pytest.mark.parametrize("refresh", ["aorFAKE-cut", token("cut") + "..."], ids=["short", "with an ellipsis"])
def test_a_truncated_refresh_token_is_reported_and_not_tried(tmp_path: Path, refresh: str) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=refresh)
    with FakeKiro() as fake:
        with pytest.raises(RequestError, match="truncated") as refused:
            asyncio.run(make_rig(fake, section(path), once))
        assert fake.counts[REFRESH] == 0
    assert "aorFAKE" not in str(refused.value)


def test_a_short_refresh_token_is_tried_if_the_user_or_the_issuer_gave_it(tmp_path: Path) -> None:
    """Only what another program has written to its file can be truncated."""

    async def rejected_once(rig: Rig) -> tuple[str, bool, str]:
        first = await rig.refresher.get()
        return first.access_token, await rig.refresher.renew(), (await rig.refresher.get()).access_token

    path = ide_file(tmp_path / "kiro-auth-token.json")
    for credentials in (path, "env:KIRO_REFRESH"):
        with FakeKiro() as fake:
            for number in (1, 2):
                tokens = {"accessToken": f"aoaFAKE-{number}", "refreshToken": f"aorFAKE-{number}", "expiresIn": 3600}
                fake.script(REFRESH, json_answer(tokens))
            environ = {"KIRO_REFRESH": "aorFAKE-short", "DRAGOMAN_DATA": str(tmp_path)}
            found = asyncio.run(make_rig(fake, section(credentials), rejected_once, environ))
            assert found == ("aoaFAKE-1", True, "aoaFAKE-2")
            assert fake.counts[REFRESH] == 2


@pytest.mark.parametrize("refresh", ["aorFAKE-cut", token("cut") + "..."], ids=["short", "with an ellipsis"])
def test_an_access_token_with_a_truncated_refresh_token_is_used_until_it_expires(tmp_path: Path, refresh: str) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-alive", refresh=refresh, life_s=60.0)
    with FakeKiro() as fake:
        found = asyncio.run(make_rig(fake, section(path), once))
    assert found.access_token == "aoaFAKE-alive"


def test_a_failing_token_service_is_not_a_rejected_credential(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json")
    with FakeKiro() as fake:
        fake.script(REFRESH, json_answer({"message": "overloaded"}, 503))
        with pytest.raises(RequestError) as refused:
            asyncio.run(make_rig(fake, section(path), once))
    assert refused.value.failure.kind is Kind.UPSTREAM


def test_a_refresh_token_that_is_not_rotated_is_kept(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))
    with FakeKiro() as fake:
        fake.refresh, fake.rotates = {token("r1")}, False
        found = asyncio.run(make_rig(fake, section(path), once))
    assert (found.access_token, found.refresh_token) == ("aoaFAKE-access-token-1", token("r1"))
    assert read(path)["refreshToken"] == token("r1")


def test_a_file_that_cannot_be_written_costs_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"))

    def full(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        assert asyncio.run(make_rig(fake, section(path), once)).access_token == "aoaFAKE-access-token-1"
    assert "kept in memory only: No space left" in caplog.text
    assert sorted(os.listdir(tmp_path)) == [path.name, f"{path.name}.dragoman-lock"]


def test_an_idc_token_is_renewed_with_its_registration(tmp_path: Path) -> None:
    (tmp_path / "abc.json").write_text('{"clientId": "fake-client", "clientSecret": "fake-client-secret"}')
    path = ide_file(tmp_path / "token.json", refresh=token("r1"), authMethod="IdC", clientIdHash="abc")
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        assert asyncio.run(make_rig(fake, section(path), once)).access_token == "aoaFAKE-access-token-1"
    request = next(request for request in fake.requests if request.path == "/token")
    assert request.json == {
        "clientId": "fake-client",
        "clientSecret": "fake-client-secret",
        "grantType": "refresh_token",
        "refreshToken": token("r1"),
    }


def test_an_expired_registration_is_reported(tmp_path: Path) -> None:
    (tmp_path / "abc.json").write_text('{"clientId": "c", "clientSecret": "s", "expiresAt": "2020-01-01T00:00:00Z"}')
    path = ide_file(tmp_path / "token.json", authMethod="IdC", clientIdHash="abc")
    with FakeKiro() as fake, pytest.raises(RequestError, match="registration has expired"):
        asyncio.run(make_rig(fake, section(path), once))
    assert fake.counts["/token"] == 0


def test_an_external_issuer_gets_a_form(tmp_path: Path) -> None:
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        path = ide_file(
            tmp_path / "token.json",
            refresh=token("r1"),
            authMethod="external_idp",
            tokenEndpoint=f"{fake.root}/idp/token",
            issuerUrl=fake.root,
            clientId="fake-client",
            scopes=["openid", "offline_access"],
        )
        assert asyncio.run(make_rig(fake, section(path), once)).access_token == "aoaFAKE-access-token-1"
    request = next(request for request in fake.requests if request.path == "/idp/token")
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
    tmp_path: Path, endpoint: str, issuer: str
) -> None:
    path = ide_file(
        tmp_path / "token.json", authMethod="external_idp", tokenEndpoint=endpoint, issuerUrl=issuer, clientId="c"
    )
    with FakeKiro() as fake, pytest.raises(RequestError, match="token endpoint"):
        asyncio.run(make_rig(fake, section(path), once))
    assert not fake.requests


def test_a_database_row_is_renewed_in_place(tmp_path: Path) -> None:
    entry = {
        "access_token": "aoaFAKE-old",
        "refresh_token": token("r1"),
        "expires_at": "2020-01-01T00:00:00.123456789Z",
    }
    path = database(tmp_path / "data.sqlite3", {"kirocli:social:token": entry})
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}
        assert asyncio.run(make_rig(fake, section(path), once)).access_token == "aoaFAKE-access-token-1"
    assert row(path, "kirocli:social:token")["access_token"] == "aoaFAKE-access-token-1"


def test_an_api_key_is_used_unchanged_and_never_renewed() -> None:
    with FakeKiro() as fake:

        async def use_and_renew(rig: Rig) -> tuple[str, bool]:
            return (await once(rig)).access_token, await rig.refresher.renew()

        environ = {"KIRO_API_KEY": "ksk_fake"}
        assert asyncio.run(make_rig(fake, section("env:KIRO_API_KEY"), use_and_renew, environ)) == ("ksk_fake", False)
    assert not fake.requests


def test_twenty_rejections_of_one_token_make_one_refresh(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-revoked", refresh=token("r1"), life_s=3600)
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}

        async def request(rig: Rig, late_s: float) -> bool:
            await once(rig)
            await asyncio.sleep(late_s)  # some get the refusal long after the first has renewed
            return await rig.refresher.renew()

        async def twenty(rig: Rig) -> list[bool]:
            return await asyncio.gather(*(request(rig, number * 0.01) for number in range(20)))

        assert asyncio.run(make_rig(fake, section(path), twenty)) == [True] * 20
    assert fake.counts[REFRESH] == 1


def test_a_slow_clock_is_corrected_by_the_token_service(tmp_path: Path) -> None:
    """Two hours behind, every token would seem to live on long after its end."""
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r1"), life_s=-10_000)
    with FakeKiro() as fake:
        fake.refresh = {token("r1")}

        async def behind(rig: Rig) -> float:
            rig.ahead_s = -7200
            answer = json_answer(fake.issue())
            fake.script(REFRESH, type(answer)(**{**answer.__dict__, "headers": (("date", formatdate(usegmt=True)),)}))
            found = await once(rig)
            return found.expires_at - rig.clock.now()

        assert asyncio.run(make_rig(fake, section(path), behind)) == pytest.approx(3600, abs=60)
    written = parse_timestamp(str(read(path)["expiresAt"]))
    assert written == pytest.approx(time.time() + 3600, abs=60)


def test_nothing_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    path = ide_file(tmp_path / "kiro-auth-token.json", access="aoaFAKE-alive", refresh=token("r1"), life_s=120)
    with FakeKiro() as fake:
        fake.refresh = set()
        asyncio.run(make_rig(fake, section(path), wait_until_settled))
        fake.refresh = {token("r1")}
        asyncio.run(make_rig(fake, section(path), wait_until_settled))
    assert "still valid" in caplog.text
    assert "FAKE" not in caplog.text

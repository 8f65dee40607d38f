"""Signing in to Kiro by code or in a browser, and every way it can fail."""

import asyncio
import re
import stat
import threading
import time
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import pytest

from dragoman.upstreams.credentials.credential import Table, parse_timestamp
from dragoman.upstreams.credentials.login import LoginFailed, save_login
from dragoman.upstreams.kiro.credential import Method
from dragoman.upstreams.kiro.credential_sources import JsonFile
from dragoman.upstreams.kiro.login import DeviceLogin, SocialLogin
from fakes.kiro import ARN, FakeKiro, json_answer
from narrowing import present
from upstreams.account_kit import FakeSleep, open_service
from upstreams.kiro.kiro_kit import read


def by_code(fake: FakeKiro, nap: FakeSleep, ticks: list[float] | None = None, **how: str) -> Table:
    async def sign_in() -> Table:
        async with open_service() as service:
            login = DeviceLogin(service, fake.root, sleep=nap, **how)
            client, prompt = await login.begin()
            assert (prompt.user_code, prompt.link) == ("FAKE-CODE", f"{fake.root}/device?user_code=FAKE-CODE")
            return await login.wait(client, prompt, (ticks if ticks is not None else []).append)

    return asyncio.run(sign_in())


def test_a_builder_id_signs_in_by_code(kiro: FakeKiro, tmp_path: Path) -> None:
    ticks: list[float] = []
    kiro.device.extend(["authorization_pending", "authorization_pending"])
    table = by_code(kiro, FakeSleep(), ticks)
    save_login(tmp_path / "own" / "kiro.json", table)
    found = JsonFile(tmp_path / "own" / "kiro.json").read()
    assert (found.method, found.access_token) == (Method.OIDC, "aoaFAKE-access-token-1")
    assert (found.client_id, found.client_secret, found.builder_id) == ("fake-client", "fake-client-secret", True)
    assert stat.S_IMODE((tmp_path / "own" / "kiro.json").stat().st_mode) == 0o600
    assert kiro.counts["/token"] == 3
    assert ticks[0] == 600
    assert ticks == sorted(ticks, reverse=True)


def test_an_organisation_signs_in_at_its_own_start_page(kiro: FakeKiro) -> None:
    table = by_code(kiro, FakeSleep(), start_url="https://fake.awsapps.com/start")
    request = next(request for request in kiro.requests if request.path == "/device_authorization")
    assert request.json["startUrl"] == "https://fake.awsapps.com/start"
    assert (table["provider"], table["startUrl"]) == ("Enterprise", "https://fake.awsapps.com/start")


def test_slow_down_adds_five_seconds_each_time(kiro: FakeKiro) -> None:
    nap = FakeSleep()
    kiro.device.extend(["slow_down", "authorization_pending", "slow_down"])
    by_code(kiro, nap)
    assert nap.taken == [0.1, 5.1, 5.1, 10.1]


@pytest.mark.parametrize(
    ("word", "message"),
    [("access_denied", "denied"), ("expired_token", "expired"), ("invalid_client", "refused [(]invalid_client")],
)
def test_a_sign_in_without_a_token_is_reported(kiro: FakeKiro, word: str, message: str) -> None:
    kiro.device.extend(["authorization_pending", word])
    with pytest.raises(LoginFailed, match=message):
        by_code(kiro, FakeSleep())
    assert kiro.counts["/token"] == 2


def test_an_unconfirmed_code_expires(kiro: FakeKiro) -> None:
    kiro.device.extend(["authorization_pending", *["slow_down"] * 50])
    with pytest.raises(LoginFailed, match="expired"):
        by_code(kiro, FakeSleep())


def test_a_server_error_does_not_end_the_polling(kiro: FakeKiro) -> None:
    hiccups = [json_answer({"message": "hiccup"}, status) for status in (429, 500, 503)]
    kiro.script("/token", *hiccups)
    assert by_code(kiro, FakeSleep())["accessToken"] == "aoaFAKE-access-token-1"


def test_a_failed_registration_is_reported(kiro: FakeKiro) -> None:
    kiro.script("/client/register", json_answer({"error": "invalid_request"}, 400))
    with pytest.raises(LoginFailed, match=r"invalid_request.*--region"):
        by_code(kiro, FakeSleep())


@pytest.mark.parametrize("ahead_s", [7200, -7200])
def test_the_expiry_is_computed_with_the_services_clock(kiro: FakeKiro, ahead_s: float) -> None:
    """Whatever the local clock says: other tools read the file with the right time."""
    service = time.time() + ahead_s
    answer = json_answer(kiro.issue())
    kiro.script("/token", replace(answer, headers=(("date", formatdate(service, usegmt=True)),)))
    table = by_code(kiro, FakeSleep())
    assert present(parse_timestamp(str(table["expiresAt"]))) == pytest.approx(service + 3600, abs=30)


def test_an_unreachable_service_is_reported() -> None:
    with FakeKiro() as fake:
        pass
    with pytest.raises(LoginFailed, match="cannot connect"):
        by_code(fake, FakeSleep())


def sign_in_with_browser(fake: FakeKiro, person: Callable[[str], None], timeout_s: float = 60.0) -> Table:
    """`person` is given the link in a thread of its own, as a browser would be."""

    async def sign_in() -> Table:
        async with open_service() as service:
            login = SocialLogin(service, fake.root, "google", timeout_s)
            return await login.run(lambda link: threading.Thread(target=person, args=(link,), daemon=True).start())

    return asyncio.run(sign_in())


def visit(link: str, **fields: str) -> int:
    """Comes back from the provider's page to where the link says."""
    back = parse_qs(urlsplit(link).query)["redirect_uri"][0].replace("localhost", "127.0.0.1")
    query = "&".join(f"{name}={value}" for name, value in fields.items())
    try:
        with urllib.request.urlopen(f"{back}?{query}") as page:
            return int(page.status)
    except HTTPError as error:
        return error.code


def state_of(link: str) -> str:
    return parse_qs(urlsplit(link).query)["state"][0]


def test_google_brings_the_person_back_with_a_code(kiro: FakeKiro) -> None:
    links: list[str] = []

    def person(link: str) -> None:
        links.append(link)
        assert visit(link, code="fake-code", state="not-the-state") == 404  # another program's
        assert visit(link, code="fake-code", state=state_of(link)) == 200

    table = sign_in_with_browser(kiro, person)
    query = parse_qs(urlsplit(links[0]).query)
    assert (query["idp"], query["code_challenge_method"]) == (["Google"], ["S256"])
    assert (table["accessToken"], table["profileArn"], table["authMethod"]) == ("aoaFAKE-access-token-1", ARN, "social")
    exchanged = next(request for request in kiro.requests if request.path == "/oauth/token").json
    digest = sha256(str(exchanged["code_verifier"]).encode()).digest()
    assert query["code_challenge"] == [urlsafe_b64encode(digest).rstrip(b"=").decode()]
    assert re.fullmatch(r"http://localhost:\d+/oauth/callback", str(exchanged["redirect_uri"]))


def test_a_person_who_declines_in_the_browser_is_not_signed_in(kiro: FakeKiro) -> None:
    with pytest.raises(LoginFailed, match="denied"):
        sign_in_with_browser(kiro, lambda link: print(visit(link, error="access_denied", state=state_of(link))))
    assert kiro.counts["/oauth/token"] == 0


def test_a_rejected_code_is_reported(kiro: FakeKiro) -> None:
    with pytest.raises(LoginFailed, match="rejected"):
        sign_in_with_browser(kiro, lambda link: print(visit(link, code="wrong", state=state_of(link))))


def test_the_browser_is_not_awaited_forever(kiro: FakeKiro) -> None:
    with pytest.raises(LoginFailed, match="in time"):
        sign_in_with_browser(kiro, lambda link: None, timeout_s=0.05)


def test_a_new_login_replaces_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "kiro.json"
    save_login(path, {"accessToken": "one"})
    save_login(path, {"accessToken": "two"})
    assert read(path) == {"accessToken": "two"}

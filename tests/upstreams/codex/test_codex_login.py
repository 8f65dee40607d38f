"""Signing in with ChatGPT, in a browser or by code, and every way it can fail."""

import asyncio
import socket
import threading
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from dragoman.upstreams.codex.credential import AuthForm
from dragoman.upstreams.codex.login import App, BrowserLogin, DeviceLogin
from dragoman.upstreams.credentials.credential import JsonSource, Table
from dragoman.upstreams.credentials.login import LoginFailed
from fakes.codex import ACCOUNT, CLIENT_ID, DEVICE_TOKEN, TOKEN, USER_CODE, FakeCodex
from fakes.service import json_answer, plain
from upstreams.account_kit import FakeSleep, open_service
from upstreams.codex.codex_kit import write_file


def sign_in_by_code(fake: FakeCodex, nap: FakeSleep) -> Table:
    async def sign_in() -> Table:
        async with open_service() as service:
            login = DeviceLogin(service, App(fake.root, CLIENT_ID, "dragoman"), nap)
            prompt = await login.begin()
            assert (prompt.code, login.link) == ("FAKE-CODE", f"{fake.root}/codex/device")
            return await login.wait(prompt, lambda left: None)

    return asyncio.run(sign_in())


def test_a_code_is_polled_at_the_demanded_pace_and_exchanged_with_the_services_verifier(
    codex: FakeCodex, tmp_path: Path
) -> None:
    nap = FakeSleep()
    codex.device.extend([json_answer({}, 403), json_answer({}, 404)])
    table = sign_in_by_code(codex, nap)
    assert nap.taken == [5.0, 5.0, 5.0]
    exchanged = {name: values[0] for name, values in parse_qs(codex.at(TOKEN)[0].body.decode()).items()}
    assert exchanged["code_verifier"] == "fake-verifier-of-the-service"
    assert exchanged["redirect_uri"] == f"{codex.root}/deviceauth/callback"
    found = JsonSource(write_file(tmp_path / "codex.json", table), AuthForm()).read()
    assert (found.account, found.access_token in codex.access) == (ACCOUNT, True)


def test_a_service_that_is_polled_too_often_is_polled_less_often(codex: FakeCodex) -> None:
    nap = FakeSleep()
    codex.device.extend([json_answer({}, 429), json_answer({}, 500)])
    sign_in_by_code(codex, nap)
    assert nap.taken == [5.0, 10.0, 10.0]


@pytest.mark.parametrize(("word", "message"), [("access_denied", "denied"), ("expired_token", "expired")])
def test_a_sign_in_without_a_code_is_reported(codex: FakeCodex, word: str, message: str) -> None:
    codex.device.append(json_answer({"error": {"code": word}}, 403))
    with pytest.raises(LoginFailed, match=message):
        sign_in_by_code(codex, FakeSleep())
    assert codex.counts[DEVICE_TOKEN] == 1


def test_an_unconfirmed_code_expires_after_a_quarter_of_an_hour(codex: FakeCodex) -> None:
    nap = FakeSleep()
    codex.device.extend([json_answer({}, 403)] * 400)
    with pytest.raises(LoginFailed, match="expired"):
        sign_in_by_code(codex, nap)
    assert sum(nap.taken) == 900


def test_a_failed_exchange_is_reported(codex: FakeCodex) -> None:
    codex.script(TOKEN, json_answer({"error": "invalid_grant"}, 400))
    with pytest.raises(LoginFailed, match="invalid_grant"):
        sign_in_by_code(codex, FakeSleep())
    assert (codex.counts[DEVICE_TOKEN], codex.counts[TOKEN]) == (1, 1)


def test_an_unreachable_service_is_reported() -> None:
    with FakeCodex() as fake:
        pass
    with pytest.raises(LoginFailed, match="cannot connect"):
        sign_in_by_code(fake, FakeSleep())


def test_an_account_without_codes_is_pointed_to_the_browser(codex: FakeCodex) -> None:
    codex.script(USER_CODE, plain("not found", 404))
    with pytest.raises(LoginFailed, match="--device"):
        sign_in_by_code(codex, FakeSleep())


def sign_in_with_browser(
    fake: FakeCodex, person: Callable[[str], None], ports: tuple[int, ...] = (0,), timeout_s: float = 60.0
) -> Table:
    async def sign_in() -> Table:
        async with open_service() as service:
            login = BrowserLogin(service, App(fake.root, CLIENT_ID, "dragoman"), ports, timeout_s)
            return await login.run(lambda link: threading.Thread(target=person, args=(link,), daemon=True).start())

    return asyncio.run(sign_in())


def visit(link: str, **fields: str) -> None:
    query = {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}
    back = query["redirect_uri"].replace("localhost", "127.0.0.1")
    with urllib.request.urlopen(f"{back}?{urlencode({'state': query['state'], **fields})}") as page:
        assert page.status == 200


def test_the_browser_brings_a_code_back(codex: FakeCodex, tmp_path: Path) -> None:
    links: list[str] = []

    def person(link: str) -> None:
        links.append(link)
        visit(link, code="fake-code")

    table = sign_in_with_browser(codex, person)
    query = {name: values[0] for name, values in parse_qs(urlsplit(links[0]).query).items()}
    assert urlsplit(links[0]).path == "/oauth/authorize"
    assert (query["client_id"], query["originator"], query["code_challenge_method"]) == (CLIENT_ID, "dragoman", "S256")
    assert query["scope"] == "openid profile email offline_access"
    assert query["redirect_uri"].endswith("/auth/callback")
    assert JsonSource(write_file(tmp_path / "codex.json", table), AuthForm()).read().account == ACCOUNT
    exchanged = {name: values[0] for name, values in parse_qs(codex.at(TOKEN)[0].body.decode()).items()}
    digest = sha256(exchanged["code_verifier"].encode()).digest()
    assert query["code_challenge"] == urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert exchanged["redirect_uri"] == query["redirect_uri"]


def test_a_code_with_a_foreign_state_is_not_accepted(codex: FakeCodex) -> None:
    def person(link: str) -> None:
        with pytest.raises(HTTPError, match="404"):
            visit(link, code="fake-code", state="not-the-state")
        visit(link, code="fake-code")

    assert sign_in_with_browser(codex, person)["auth_mode"] == "chatgpt"
    assert codex.counts[TOKEN] == 1


def test_the_browser_is_not_awaited_forever(codex: FakeCodex) -> None:
    with pytest.raises(LoginFailed, match="in time"):
        sign_in_with_browser(codex, lambda link: None, timeout_s=0.05)
    assert codex.counts[TOKEN] == 0


def test_the_other_registered_port_is_taken_where_the_first_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, FakeCodex() as fake:
        ports = (taken.getsockname()[1], 0)
        assert (
            sign_in_with_browser(fake, lambda link: visit(link, code="fake-code"), ports=ports)["auth_mode"]
            == "chatgpt"
        )


NOT_IN_PLAN = {"error": "access_denied", "error_description": "missing_codex_entitlement: no"}


@pytest.mark.parametrize(
    ("fields", "message", "exchanges"),
    [
        (NOT_IN_PLAN, "plan does not include", 0),
        ({"error": "access_denied"}, "denied", 0),
        ({"code": "wrong"}, "invalid_grant", 1),
    ],
)
def test_what_the_browser_brings_back_instead_of_a_code_is_reported(
    codex: FakeCodex, fields: dict[str, str], message: str, exchanges: int
) -> None:
    with pytest.raises(LoginFailed, match=message):
        sign_in_with_browser(codex, lambda link: visit(link, **fields))
    assert codex.counts[TOKEN] == exchanges


def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, FakeCodex() as fake:
        port = taken.getsockname()[1]
        with pytest.raises(LoginFailed, match=str(port)):
            sign_in_with_browser(fake, lambda link: None, ports=(port,))

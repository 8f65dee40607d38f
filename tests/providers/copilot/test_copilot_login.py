"""Signing in with GitHub by code, and every way it can fail."""

import asyncio
import time

import pytest

from dragoman.accounts.credential import Table, parse_timestamp
from dragoman.accounts.login import LoginFailed
from dragoman.accounts.service_client import ServerClock, ServiceClient
from dragoman.net.client import DialOptions, HttpClient
from dragoman.providers.copilot.login import DeviceLogin
from fakes.copilot import APP_TOKEN, CLIENT_ID, TOKEN, FakeCopilot
from fakes.service import json_answer, plain
from narrowing import present


class FakeSleep:
    """Sleeps that take no time and are remembered."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(round(seconds, 3))


def by_code(fake: FakeCopilot, nap: FakeSleep, client_id: str = CLIENT_ID) -> Table:
    async def sign_in() -> Table:
        http = HttpClient()
        try:
            login = DeviceLogin(ServiceClient(http.send, DialOptions(), ServerClock(), ()), fake.root, client_id, nap)
            prompt = await login.begin()
            assert (prompt.user_code, prompt.verification_uri) == ("FAKE-CODE", f"{fake.root}/device")
            return await login.wait(prompt, lambda left: None)
        finally:
            await http.close()

    return asyncio.run(sign_in())


def test_a_person_confirms_after_a_while() -> None:
    with FakeCopilot() as fake:
        fake.device.extend([{"error": "authorization_pending"}] * 2)
        assert by_code(fake, FakeSleep()) == {"oauth_token": APP_TOKEN, "auth": "direct"}
    assert fake.counts[TOKEN] == 3
    assert fake.at(TOKEN)[0].headers["accept"] == "application/json"


def test_slow_down_uses_the_given_interval_or_five_seconds_more() -> None:
    nap = FakeSleep()
    with FakeCopilot() as fake:
        fake.device.extend([{"error": "slow_down", "interval": 7}, {"error": "slow_down"}])
        by_code(fake, nap)
    assert nap.taken == [0.1, 7.0, 12.0]


@pytest.mark.parametrize(
    ("word", "message"),
    [("access_denied", "denied"), ("expired_token", "expired"), ("incorrect_device_code", "refused")],
)
def test_a_sign_in_without_a_token_is_reported(word: str, message: str) -> None:
    with FakeCopilot() as fake:
        fake.device.append({"error": word})
        with pytest.raises(LoginFailed, match=message):
            by_code(fake, FakeSleep())
    assert fake.counts[TOKEN] == 1


def test_an_unconfirmed_code_expires() -> None:
    with FakeCopilot() as fake:
        fake.device.extend([{"error": "slow_down", "interval": 200}] * 20)
        with pytest.raises(LoginFailed, match="expired"):
            by_code(fake, FakeSleep())


def test_a_server_error_does_not_end_the_polling() -> None:
    with FakeCopilot() as fake:
        fake.script(TOKEN, plain("<html>unicorn</html>", 502), json_answer({"message": "Server Error"}, 502))
        assert by_code(fake, FakeSleep()) == {"oauth_token": APP_TOKEN, "auth": "direct"}


def test_an_unknown_app_is_reported() -> None:
    with FakeCopilot() as fake, pytest.raises(LoginFailed, match="client id"):
        by_code(fake, FakeSleep(), "Ov23FAKEunknown")


def test_an_expiring_token_is_stored_with_its_refresh_token() -> None:
    with FakeCopilot() as fake:
        fake.script(TOKEN, json_answer(fake.renewable("1")))
        table = by_code(fake, FakeSleep())
    assert (table["oauth_token"], table["refresh_token"], table["client_id"]) == ("ghu_FAKE1", "ghr_FAKE1", CLIENT_ID)
    assert str(table["expires_at"]).endswith("Z")


def test_the_expiry_is_computed_with_githubs_clock() -> None:
    with FakeCopilot() as fake:
        fake.ahead_s = 86_400
        fake.script(TOKEN, json_answer(fake.renewable("1")))
        table = by_code(fake, FakeSleep())
    assert present(parse_timestamp(str(table["expires_at"]))) == pytest.approx(time.time() + 86_400 + 28_800, abs=30)


def test_an_unreachable_github_is_reported() -> None:
    with FakeCopilot() as fake:
        pass
    with pytest.raises(LoginFailed, match="cannot connect"):
        by_code(fake, FakeSleep())

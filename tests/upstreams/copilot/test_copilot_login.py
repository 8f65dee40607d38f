"""Signing in with GitHub by code, and every way it can fail."""

import asyncio
import time

import pytest

from dragoman.upstreams.copilot.login import DeviceLogin
from dragoman.upstreams.credentials.credential import Table, parse_timestamp
from dragoman.upstreams.credentials.login import LoginFailed
from fakes.copilot import APP_TOKEN, CLIENT_ID, TOKEN, FakeCopilot
from fakes.service import json_answer, plain
from narrowing import present
from upstreams.account_kit import FakeSleep, open_service


def by_code(fake: FakeCopilot, nap: FakeSleep, client_id: str = CLIENT_ID) -> Table:
    async def sign_in() -> Table:
        async with open_service() as service:
            login = DeviceLogin(service, fake.root, client_id, nap)
            prompt = await login.begin()
            assert (prompt.user_code, prompt.verification_uri) == ("FAKE-CODE", f"{fake.root}/device")
            return await login.wait(prompt, lambda left: None)

    return asyncio.run(sign_in())


def test_a_person_confirms_after_a_while(copilot: FakeCopilot) -> None:
    copilot.device.extend([{"error": "authorization_pending"}] * 2)
    assert by_code(copilot, FakeSleep()) == {"oauth_token": APP_TOKEN, "auth": "direct"}
    assert copilot.counts[TOKEN] == 3
    assert copilot.at(TOKEN)[0].headers["accept"] == "application/json"


def test_slow_down_uses_the_given_interval_or_five_seconds_more(copilot: FakeCopilot) -> None:
    nap = FakeSleep()
    copilot.device.extend([{"error": "slow_down", "interval": 7}, {"error": "slow_down"}])
    by_code(copilot, nap)
    assert nap.taken == [0.1, 7.0, 12.0]


@pytest.mark.parametrize(
    ("word", "message"),
    [("access_denied", "denied"), ("expired_token", "expired"), ("incorrect_device_code", "refused")],
)
def test_a_sign_in_without_a_token_is_reported(copilot: FakeCopilot, word: str, message: str) -> None:
    copilot.device.append({"error": word})
    with pytest.raises(LoginFailed, match=message):
        by_code(copilot, FakeSleep())
    assert copilot.counts[TOKEN] == 1


def test_an_unconfirmed_code_expires(copilot: FakeCopilot) -> None:
    copilot.device.extend([{"error": "slow_down", "interval": 200}] * 20)
    with pytest.raises(LoginFailed, match="expired"):
        by_code(copilot, FakeSleep())


def test_a_server_error_does_not_end_the_polling(copilot: FakeCopilot) -> None:
    copilot.script(TOKEN, plain("<html>unicorn</html>", 502), json_answer({"message": "Server Error"}, 502))
    assert by_code(copilot, FakeSleep()) == {"oauth_token": APP_TOKEN, "auth": "direct"}


def test_an_unknown_app_is_reported(copilot: FakeCopilot) -> None:
    with pytest.raises(LoginFailed, match="client id"):
        by_code(copilot, FakeSleep(), "Ov23FAKEunknown")


def test_an_expiring_token_is_stored_with_its_refresh_token(copilot: FakeCopilot) -> None:
    copilot.script(TOKEN, json_answer(copilot.renewable("1")))
    table = by_code(copilot, FakeSleep())
    assert (table["oauth_token"], table["refresh_token"], table["client_id"]) == ("ghu_FAKE1", "ghr_FAKE1", CLIENT_ID)
    assert str(table["expires_at"]).endswith("Z")


def test_the_expiry_is_computed_with_githubs_clock(copilot: FakeCopilot) -> None:
    copilot.ahead_s = 86_400
    copilot.script(TOKEN, json_answer(copilot.renewable("1")))
    table = by_code(copilot, FakeSleep())
    assert present(parse_timestamp(str(table["expires_at"]))) == pytest.approx(time.time() + 86_400 + 28_800, abs=30)


def test_an_unreachable_github_is_reported() -> None:
    with FakeCopilot() as fake:
        pass
    with pytest.raises(LoginFailed, match="cannot connect"):
        by_code(fake, FakeSleep())

"""`dragoman usage --plans`: how much of an account's plan is used, as the provider reports it."""

from pathlib import Path

import msgspec
import pytest

from fakes.codex import USAGE, FakeCodex
from fakes.copilot import APP_TOKEN, EDITOR_TOKEN, INSTALLATION_TOKEN, FakeCopilot
from fakes.kiro import FakeKiro
from fakes.service import json_answer
from shell import Shell


def test_a_plan_is_shown_with_what_is_used_of_it(shell: Shell, tmp_path: Path) -> None:
    with FakeKiro() as fake:
        shell.write("dragoman.toml", fake.section(fake.sign_in(tmp_path / "kiro.json")))
        done = shell.run("usage", "--plans")
    assert done.code == 0, done.err
    assert "KIRO FAKE" in done.out
    assert "12.5" in done.out
    assert "50 [#####...............]" in done.out
    assert "2030-01-01" in done.out


@pytest.mark.rest
def test_the_same_as_json(shell: Shell, tmp_path: Path) -> None:
    with FakeKiro() as fake:
        shell.write("dragoman.toml", fake.section(fake.sign_in(tmp_path / "kiro.json")))
        (quota,) = msgspec.json.decode(shell.run("usage", "--plans", "--json").out)
    assert quota == {
        "provider": "kiro",
        "plan": "KIRO FAKE",
        "what": "credit",
        "used": 12.5,
        "limit": 50.0,
        "resets_on": "2030-01-01",
    }


@pytest.mark.rest
def test_the_rest_of_a_chatgpt_plan_is_shown_by_window(shell: Shell, tmp_path: Path) -> None:
    with FakeCodex() as fake:
        file = tmp_path / "auth.json"
        file.write_bytes(msgspec.json.encode(fake.auth_file(7200)))
        window = {"used_percent": 42, "limit_window_seconds": 18_000, "reset_at": 1_900_000_000}
        limit = {"limit_reached": False, "primary_window": window, "secondary_window": None}
        fake.script(USAGE, json_answer({"plan_type": "plus", "rate_limit": limit}))
        shell.write("dragoman.toml", fake.section(str(file)))
        (quota,) = msgspec.json.decode(shell.run("usage", "--plans", "--json").out)
    assert quota == {
        "provider": "codex",
        "plan": "plus",
        "what": "% of 5 hours",
        "used": 42.0,
        "limit": 100.0,
        "resets_on": "2030-03-17 17:46",
    }


@pytest.mark.rest
@pytest.mark.parametrize("token", [EDITOR_TOKEN, APP_TOKEN], ids=["exchanged", "sent as it is"])
def test_the_rest_of_a_copilot_plan_is_read_from_github(shell: Shell, token: str) -> None:
    premium = {"entitlement": 300, "remaining": -5, "percent_remaining": -1.6, "unlimited": False}
    quotas = {
        "copilot_plan": "individual",
        "quota_reset_date": "2030-01-01",
        "quota_snapshots": {"premium_interactions": premium, "chat": {"unlimited": True}, "completions": None},
    }
    with FakeCopilot() as fake:
        fake.script("/copilot_internal/user", json_answer(quotas))
        shell.write("dragoman.toml", fake.section("env:FAKE_GITHUB_TOKEN"))
        done = shell.run("usage", "--plans", "--json", FAKE_GITHUB_TOKEN=token)
        (request,) = fake.at("/copilot_internal/user")
    shared = {"provider": "copilot", "plan": "individual", "resets_on": "2030-01-01"}
    assert msgspec.json.decode(done.out) == [
        {**shared, "what": "premium interactions", "used": 305.0, "limit": 300.0},
        {**shared, "what": "chat", "used": 0.0, "limit": None},
    ]
    assert request.headers["authorization"] == f"token {token}"


@pytest.mark.rest
def test_an_installation_has_no_plan_of_its_own(shell: Shell) -> None:
    with FakeCopilot() as fake:
        shell.write("dragoman.toml", fake.section("env:FAKE_GITHUB_TOKEN"))
        done = shell.run("usage", "--plans", FAKE_GITHUB_TOKEN=INSTALLATION_TOKEN)
        assert (done.code, fake.at("/copilot_internal/user")) == (0, [])


def test_an_account_that_cannot_be_reached_is_reported_and_fails(shell: Shell, tmp_path: Path) -> None:
    with FakeKiro() as fake:
        shell.write("dragoman.toml", fake.section(fake.sign_in(tmp_path / "kiro.json")))
        fake.access.clear()
        fake.refresh.clear()
        done = shell.run("usage", "--plans")
    assert done.code == 1
    assert "dragoman doctor" in done.err


def test_providers_without_a_plan_are_no_failure(shell: Shell) -> None:
    done = shell.run("usage", "--plans")
    assert (done.code, done.out) == (0, "")
    assert "No configured provider" in done.err

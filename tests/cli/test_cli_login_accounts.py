"""`dragoman login codex` and `login copilot` as processes, and a gateway that uses their credentials."""

import stat
from pathlib import Path

import msgspec
import pytest

from fakes.codex import FakeCodex
from fakes.copilot import APP_TOKEN, CLIENT_ID, EDITOR_TOKEN, EXCHANGE, FakeCopilot
from fakes.service import json_answer
from shell import Shell


def test_a_login_with_chatgpt_is_found_by_doctor(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with FakeCodex() as fake:
        prompt = {"device_auth_id": "fake-device", "user_code": "FAKE-CODE", "interval": "0.1"}
        fake.script("/api/accounts/deviceauth/usercode", json_answer(prompt))
        shell.write(
            "dragoman.toml",
            f'[providers.codex]\nkind = "codex"\nendpoint = "{fake.endpoint}"\nauth_endpoint = "{fake.root}"\n',
        )
        done = shell.run("login", "codex", "--device")
        assert done.code == 0, done.err
        assert "FAKE-CODE" in done.out
        stored = tmp_path / ".local" / "share" / "dragoman" / "codex.json"
        tokens = msgspec.json.decode(stored.read_bytes())["tokens"]
        assert stat.S_IMODE(stored.stat().st_mode) == 0o600
        assert not any(token in done.out + done.err for token in tokens.values())
        checks = shell.run("doctor", "--json").json["checks"]
        codex = [check for check in checks if check["what"].startswith("provider codex")]
        assert [check["state"] for check in codex] == ["ok", "ok"]
        assert "plus" in codex[0]["found"]
        assert "42 % of 5 hours" in codex[1]["found"]
    assert not (tmp_path / ".codex").exists()


def test_a_login_with_github_is_found_by_doctor(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with FakeCopilot() as fake:
        roots = f'endpoint = "{fake.root}"\nauth_endpoint = "{fake.root}"\ncontrol_endpoint = "{fake.root}"\n'
        shell.write("dragoman.toml", f'[providers.copilot]\nkind = "copilot"\n{roots}')
        fake.device.append({"error": "authorization_pending"})
        done = shell.run("login", "copilot", "--client-id", CLIENT_ID)
        assert done.code == 0, done.err
        assert "FAKE-CODE" in done.out
        assert APP_TOKEN not in done.out + done.err
        stored = tmp_path / ".local" / "share" / "dragoman" / "copilot.json"
        assert msgspec.json.decode(stored.read_bytes()) == {"github.com": {"oauth_token": APP_TOKEN, "auth": "direct"}}
        checks = shell.run("doctor", "--json").json["checks"]
        (copilot,) = [check for check in checks if check["what"].startswith("provider copilot")]
        assert (copilot["state"], "3 models" in copilot["found"]) == ("ok", True)
        assert "1 more whose terms are not accepted (https://github.com/settings/" in copilot["found"]


def test_an_account_without_copilot_is_broken_with_a_link_to_github(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    details = {"notification_id": "no_copilot_access", "message": "No access to Copilot found."}
    with FakeCopilot() as fake:
        fake.script(EXCHANGE, json_answer({"error_details": details}, 403))
        shell.write("dragoman.toml", fake.section("env:FAKE_GITHUB_TOKEN"))
        checks = shell.run("doctor", "--json", FAKE_GITHUB_TOKEN=EDITOR_TOKEN).json["checks"]
    (copilot,) = [check for check in checks if check["what"].startswith("provider copilot")]
    assert copilot["state"] == "broken"
    assert "no_copilot_access" in copilot["found"]
    assert "https://github.com/settings/" in copilot["to_do"]


def test_copilot_needs_an_app_of_the_users_own(tmp_path: Path) -> None:
    done = Shell(tmp_path).run("login", "copilot")
    assert done.code == 1
    assert "client_id" in done.err


def test_a_denied_login_fails_and_leaves_nothing(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with FakeCopilot() as fake:
        section = f'[providers.copilot]\nkind = "copilot"\nauth_endpoint = "{fake.root}"\nclient_id = "{CLIENT_ID}"\n'
        shell.write("dragoman.toml", section)
        fake.device.append({"error": "access_denied"})
        done = shell.run("login", "copilot")
    assert done.code == 1
    assert "denied" in done.err
    assert not (tmp_path / ".local" / "share" / "dragoman" / "copilot.json").exists()


@pytest.mark.rest
def test_two_accounts_are_stored_in_two_files_and_checked_separately(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with FakeCodex() as fake:
        prompt = {"device_auth_id": "fake-device", "user_code": "FAKE-CODE", "interval": "0.1"}
        fake.script("/api/accounts/deviceauth/usercode", json_answer(prompt), json_answer(prompt))
        section = f'[providers.codex]\nkind = "codex"\nendpoint = "{fake.endpoint}"\nauth_endpoint = "{fake.root}"\n'
        shell.write("dragoman.toml", section)
        second = tmp_path / "accounts" / "second.json"
        done = shell.run("login", "codex", "--device", "--file", str(second))
        assert done.code == 0, done.err
        assert f'[providers.codex]: credentials = ["{second}", …]' in done.err
        assert stat.S_IMODE(second.stat().st_mode) == 0o600
        first = tmp_path / "accounts" / "first.json"
        shell.write("dragoman.toml", f'{section}credentials = ["{first}", "{second}"]\n')
        done = shell.run("login", "codex", "--device", "--file", str(first))
        assert "A running gateway uses it" in done.err
        checks = shell.run("doctor", "--json").json["checks"]
    looked_at = [check["what"] for check in checks if check["state"] == "ok"]
    for name in ("1 of 2 (first.json)", "2 of 2 (second.json)"):
        assert f"provider codex, credential {name}" in looked_at
        assert f"provider codex, credential {name} usage" in looked_at

"""Sign-in without a terminal: prompts go to callbacks, the credential into a file."""

import asyncio
import stat
from pathlib import Path

import msgspec
import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate import AdminError
from dragoman.operate.sign_in import (
    CredentialUse,
    KiroOptions,
    Prompt,
    sign_in_codex,
    sign_in_copilot,
    sign_in_kiro,
)
from fakes.codex import FakeCodex
from fakes.copilot import APP_TOKEN, CLIENT_ID, FakeCopilot
from fakes.kiro import FakeKiro
from fakes.service import json_answer


class User:
    """Keeps what it was shown."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self.remaining: list[float] = []

    def show_prompt(self, prompt: Prompt) -> None:
        self.prompts.append(prompt)

    def show_remaining(self, seconds: float) -> None:
        self.remaining.append(seconds)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return tmp_path


def config_in(directory: Path, section: str) -> Config:
    (directory / "dragoman.toml").write_text(section)
    return ConfigSource(None, {}, directory, directory).read()


def kiro_section(fake: FakeKiro, more: str = "") -> str:
    return f'[providers.kiro]\nkind = "kiro"\nauth_endpoint = "{fake.root}"\n{more}'


def test_a_code_is_shown_and_the_credential_is_stored_for_the_gateway(home: Path) -> None:
    user = User()
    with FakeKiro() as fake:
        fake.device.append("authorization_pending")
        signed_in = asyncio.run(sign_in_kiro(config_in(home, kiro_section(fake)), KiroOptions(), None, user))
    assert (signed_in.provider, signed_in.use) == ("kiro", CredentialUse.USED)
    assert signed_in.file == home / ".local" / "share" / "dragoman" / "kiro.json"
    assert stat.S_IMODE(signed_in.file.stat().st_mode) == 0o600
    assert [prompt.code for prompt in user.prompts] == ["FAKE-CODE"]
    assert user.remaining


def test_a_file_of_the_users_choice_is_not_used_until_it_is_listed(home: Path) -> None:
    file = home / "second.json"
    with FakeKiro() as fake:
        config = config_in(home, kiro_section(fake))
        assert asyncio.run(sign_in_kiro(config, KiroOptions(), file, User())).use == CredentialUse.NOT_LISTED
        listed = config_in(home, kiro_section(fake, f'credentials = "{file}"\n'))
        assert asyncio.run(sign_in_kiro(listed, KiroOptions(), file, User())).use == CredentialUse.USED
        overridden = asyncio.run(sign_in_kiro(listed, KiroOptions(), None, User()))
    assert (overridden.use, overridden.overridden_by) == (CredentialUse.OVERRIDDEN, str(file))


def test_a_denied_sign_in_is_an_error_and_leaves_no_file(home: Path) -> None:
    with FakeKiro() as fake:
        fake.device.append("access_denied")
        with pytest.raises(AdminError, match="Not signed in"):
            asyncio.run(sign_in_kiro(config_in(home, kiro_section(fake)), KiroOptions(), home / "k.json", User()))
    assert not (home / "k.json").exists()


def test_codex_signs_in_with_a_code_on_another_device(home: Path) -> None:
    user = User()
    with FakeCodex() as fake:
        prompt = {"device_auth_id": "fake-device", "user_code": "FAKE-CODE", "interval": "0.1"}
        fake.script("/api/accounts/deviceauth/usercode", json_answer(prompt))
        section = f'[providers.codex]\nkind = "codex"\nauth_endpoint = "{fake.root}"\n'
        signed_in = asyncio.run(sign_in_codex(config_in(home, section), device=True, file=None, user=user))
    assert [prompt.code for prompt in user.prompts] == ["FAKE-CODE"]
    assert "access_token" in msgspec.json.decode(signed_in.file.read_bytes())["tokens"]


def test_copilot_needs_an_app_of_the_users_own(home: Path) -> None:
    with FakeCopilot() as fake:
        config = config_in(home, f'[providers.copilot]\nkind = "copilot"\nauth_endpoint = "{fake.root}"\n')
        with pytest.raises(AdminError, match="client_id"):
            asyncio.run(sign_in_copilot(config, None, None, User()))
        signed_in = asyncio.run(sign_in_copilot(config, CLIENT_ID, None, User()))
    assert msgspec.json.decode(signed_in.file.read_bytes())["github.com"]["oauth_token"] == APP_TOKEN

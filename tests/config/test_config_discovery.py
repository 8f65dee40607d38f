"""Credentials that other tools have left make providers appear by themselves."""

from pathlib import Path

import pytest

from dragoman.config.discovery import find_kiro_credentials
from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.config.settings import CodexProviderConfig, KiroProviderConfig

IDE = ".aws/sso/cache/kiro-auth-token.json"
CLI = ".local/share/kiro-cli/data.sqlite3"
OWN = ".local/share/dragoman/kiro.json"


def leave(home: Path, name: str) -> Path:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return path


@pytest.mark.parametrize("name", [OWN, IDE, CLI, ".local/share/amazon-q/data.sqlite3"])
def test_each_credential_file_makes_a_provider_with_its_origin(tmp_path: Path, name: str) -> None:
    path = leave(tmp_path, name)
    config = ConfigSource(None, {}, tmp_path, tmp_path).read()
    assert list(config.providers) == ["kiro"]
    assert isinstance(config.providers["kiro"], KiroProviderConfig)
    assert config.origins["providers.kiro.kind"] == str(path)


def test_the_places_have_an_order(tmp_path: Path) -> None:
    for name in (CLI, IDE, OWN):
        path = leave(tmp_path, name)
        assert find_kiro_credentials({}, tmp_path) == path


def test_the_data_directory_may_be_elsewhere(tmp_path: Path) -> None:
    path = leave(tmp_path, "data/kiro-cli/data.sqlite3")
    assert find_kiro_credentials({"XDG_DATA_HOME": str(tmp_path / "data")}, tmp_path) == path


def test_a_configured_provider_is_not_doubled(tmp_path: Path) -> None:
    leave(tmp_path, IDE)
    (tmp_path / "dragoman.toml").write_text('[providers.work]\nkind = "kiro"\ncredentials = "env:REFRESH_TOKEN"\n')
    assert list(ConfigSource(None, {}, tmp_path, tmp_path).read().providers) == ["work"]


def test_a_provider_of_that_name_but_another_kind_stays(tmp_path: Path) -> None:
    leave(tmp_path, IDE)
    (tmp_path / "dragoman.toml").write_text('[providers.kiro]\nkind = "echo"\n')
    assert ConfigSource(None, {}, tmp_path, tmp_path).read().providers["kiro"].kind == "echo"


def test_an_api_key_in_the_environment_configures_kiro(tmp_path: Path) -> None:
    kiro = ConfigSource(None, {"KIRO_API_KEY": "ksk_fake"}, tmp_path, tmp_path).read().providers["kiro"]
    assert isinstance(kiro, KiroProviderConfig)
    assert str(kiro.credentials) == "env:KIRO_API_KEY"


def test_nothing_left_means_no_provider(tmp_path: Path) -> None:
    assert list(ConfigSource(None, {}, tmp_path, tmp_path).read().providers) == ["echo"]


CODEX = '{"tokens": {"access_token": "fake", "refresh_token": "fake"}}'
COPILOT = '{"github.com": {"oauth_token": "gho_FAKE"}}'


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("codex", ".codex/auth.json", CODEX),
        ("codex", ".local/share/dragoman/codex.json", CODEX),
        ("copilot", ".config/github-copilot/apps.json", COPILOT),
        ("copilot", ".config/github-copilot/hosts.json", COPILOT),
        ("copilot", ".local/share/dragoman/copilot.json", COPILOT),
    ],
)
def test_logins_of_other_tools_make_their_providers_appear(tmp_path: Path, kind: str, name: str, text: str) -> None:
    path = leave(tmp_path, name)
    path.write_text(text)
    config = ConfigSource(None, {}, tmp_path, tmp_path).read()
    assert list(config.providers) == [kind]
    assert config.origins[f"providers.{kind}.kind"] == str(path)


def test_codex_may_live_elsewhere(tmp_path: Path) -> None:
    leave(tmp_path, "elsewhere/auth.json").write_text(CODEX)
    config = ConfigSource(None, {"CODEX_HOME": str(tmp_path / "elsewhere")}, tmp_path, tmp_path).read()
    assert list(config.providers) == ["codex"]


def test_codex_with_a_mere_api_key_makes_no_provider(tmp_path: Path) -> None:
    leave(tmp_path, ".codex/auth.json").write_text('{"OPENAI_API_KEY": "sk-fake", "tokens": null}')
    assert list(ConfigSource(None, {}, tmp_path, tmp_path).read().providers) == ["echo"]


def test_a_configured_account_is_not_added_to(tmp_path: Path) -> None:
    leave(tmp_path, ".codex/auth.json").write_text(CODEX)
    (tmp_path / "dragoman.toml").write_text('[providers.mine]\nkind = "codex"\ncredentials = "~/mine.json"\n')
    config = ConfigSource(None, {}, tmp_path, tmp_path).read()
    assert list(config.providers) == ["mine"]
    mine = config.providers["mine"]
    assert isinstance(mine, CodexProviderConfig)
    assert (mine.credentials, mine.endpoint) == (tmp_path / "mine.json", "https://chatgpt.com/backend-api/codex")
    assert mine.protocols == ("responses",)


def test_a_key_of_another_kind_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[providers.mine]\nkind = "codex"\nintegration_id = "x"\n')
    with pytest.raises(ConfigError, match='this key exists only for providers of kind "copilot"; remove it'):
        ConfigSource(None, {}, tmp_path, tmp_path).read()

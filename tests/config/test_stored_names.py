"""`credentials = "store:NAME"`: which names there are, where they may stand, and that they are no paths or secrets."""

from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.config.providers import find_stored_name, list_credentials
from dragoman.config.secret import SecretSource
from dragoman.config.settings import Config
from dragoman.operate.configuration.effective import list_settings
from dragoman.upstreams.credentials.credential import find_named_file
from dragoman.upstreams.section import credential_labels


def read(directory: Path, kind: str, *lines: str) -> Config:
    (directory / "dragoman.toml").write_text("\n".join(["[providers.up]", f'kind = "{kind}"', *lines, ""]))
    return ConfigSource(None, {}, directory, directory).read()


@pytest.mark.parametrize("kind", ["kiro", "codex", "copilot", "gemini"])
def test_every_kind_with_accounts_takes_names(tmp_path: Path, kind: str) -> None:
    config = read(tmp_path, kind, 'credentials = ["store:team.json", "store:two_2"]')
    section = config.providers["up"]
    assert [find_stored_name(credential) for credential in list_credentials(section)] == ["team.json", "two_2"]
    assert all("store:" in label or kind == "codex" for label in credential_labels(section))


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden", "-x", "a b", "x" * 65])
@pytest.mark.parametrize("kind", ["kiro", "codex"])
def test_a_bad_name_is_a_problem_of_its_key(tmp_path: Path, kind: str, name: str) -> None:
    for value in (f'"store:{name}"', f'["store:team", "store:{name}"]'):
        with pytest.raises(ConfigError, match=r"providers\.up\.credentials.*letters, digits"):
            read(tmp_path, kind, f"credentials = {value}")


@pytest.mark.parametrize("line", ['api_key = "store:team"', 'headers = { x-team = "store:team" }'])
def test_nothing_else_is_looked_up_in_the_store(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match='"store:NAME" is only for "credentials"'):
        read(tmp_path, "kiro", line)


def test_a_name_is_no_path_and_no_secret(tmp_path: Path) -> None:
    source = SecretSource("store:team.json")
    assert find_named_file(source) is None
    assert str(source) == "store:team.json"
    config = read(tmp_path, "kiro", 'credentials = "store:team"')
    assert [row.value for row in list_settings(config, {}) if row.key.endswith("credentials")] == ["store:team"]

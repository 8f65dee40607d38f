"""Several credentials of one provider, as its section lists them."""

from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.config.providers import list_credentials, split_by_credential
from dragoman.config.secret import SecretSource
from dragoman.config.settings import KiroProviderConfig
from narrowing import expect, expect_all


def problems_of(directory: Path, text: str) -> list[str]:
    path = directory / "dragoman.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        ConfigSource(None, {}, directory, directory).read()
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def test_a_list_of_keys_is_one_provider_for_each(tmp_path: Path) -> None:
    section = '[providers.p]\nkind = "openai"\napi_key = [\n  "env:A",\n  "file:b.key",\n  "sk-fake-c",\n]\n'
    (tmp_path / "dragoman.toml").write_text(section)
    provider = ConfigSource(None, {}, tmp_path, tmp_path).read().providers["p"]
    assert [str(source) for source in list_credentials(provider)] == ["env:A", f"file:{tmp_path}/b.key", "***"]
    assert [str(single.api_key) for single in split_by_credential(provider)] == [
        "env:A",
        f"file:{tmp_path}/b.key",
        "***",
    ]
    assert all(
        single.extra_credentials == () and single.endpoint == provider.endpoint
        for single in split_by_credential(provider)
    )


def test_a_list_of_one_is_a_single_credential(tmp_path: Path) -> None:
    for written in ('"env:A"', '["env:A"]'):
        (tmp_path / "dragoman.toml").write_text(f'[providers.p]\nkind = "openai"\napi_key = {written}\n')
        provider = ConfigSource(None, {}, tmp_path, tmp_path).read().providers["p"]
        assert split_by_credential(provider) == (provider,)
        assert str(provider.api_key) == "env:A"


def test_accounts_are_listed_by_their_files(tmp_path: Path) -> None:
    text = '[providers.k]\nkind = "kiro"\ncredentials = ["~/a.json", "env:TOKEN"]\n'
    text += '[providers.c]\nkind = "codex"\ncredentials = ["a/auth.json", "~/b/auth.json"]\n'
    (tmp_path / "dragoman.toml").write_text(text)
    home = tmp_path / "home"
    config = ConfigSource(None, {}, tmp_path, home).read()
    kiro = config.providers["k"]
    assert isinstance(kiro, KiroProviderConfig)
    accounts = expect_all(KiroProviderConfig, split_by_credential(kiro))
    assert [expect(SecretSource, one.credentials).text for one in accounts] == [str(home / "a.json"), "env:TOKEN"]
    assert list_credentials(config.providers["c"]) == (tmp_path / "a" / "auth.json", home / "b" / "auth.json")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('kind = "openai"\napi_key = []', "3: providers.p.api_key: must list at least one credential"),
        ('kind = "openai"\napi_key = ["a", 3]', "3: providers.p.api_key: expected a string (at [1])"),
        ('kind = "openai"\napi_key = ["a", " "]', "3: providers.p.api_key: must not be empty (at [1])"),
        (
            'kind = "openai"\napi_key = ["a", "b", "a"]',
            "3: providers.p.api_key: lists the same credential twice (at [2]); remove one",
        ),
        (
            'kind = "kiro"\ncredentials = ["a.json", "b.json"]\napi_key = ["c", "d"]',
            '4: providers.p.api_key: only one of "credentials" and "api_key" can be a list',
        ),
        (
            'kind = "kiro"\ncredentials = "a.json"\napi_key = ["c", "d"]',
            '4: providers.p.api_key: not used, because "credentials" is set as well; remove one of them',
        ),
        (
            'kind = "copilot"\napi_key = ["c", "d"]',
            '3: providers.p.api_key: list several accounts of kind "copilot" in "credentials" instead',
        ),
        (
            'kind = "openai"\ncredentials = ["c", "d"]',
            '3: providers.p.credentials: this key exists only for providers of kind "kiro", "codex", "copilot"',
        ),
        (
            'kind = "openai"\nextra_credentials = ["c"]',
            "3: providers.p.extra_credentials: unknown key; known keys: kind, ",
        ),
    ],
)
def test_a_bad_list_is_reported_with_line_and_index(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = problems_of(tmp_path, f"[providers.p]\n{text}\n")
    assert found.startswith(problem)

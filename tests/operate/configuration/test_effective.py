"""The configuration with the origin of every value, and what is derived from it."""

import asyncio
from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.operate.configuration.effective import (
    base_url,
    client_key_variable,
    describe_source,
    find_short_key,
    list_settings,
    read_with_local_servers,
    suggest_model,
)

TOML = """\
[server]
port = 9000
[store]
url = "postgresql://me:hunter2@db/x?password=hunter3"
[limits]
webhook = "https://hooks.example.com/hunter4"
[providers.up]
kind = "openai-compatible"
endpoint = "http://127.0.0.1:9/v1"
api_key = "sk-fake-0123456789"
"""


def source(directory: Path, toml: str | None = TOML, **environ: str) -> ConfigSource:
    if toml is not None:
        (directory / "dragoman.toml").write_text(toml)
    return ConfigSource(None, {"DRAGOMAN_LOCAL_PORTS": "", **environ}, directory, directory)


def test_every_value_has_its_origin_and_no_secret_is_shown(tmp_path: Path) -> None:
    reader = source(tmp_path, DRAGOMAN_API_KEY="fake-client-key-0123456789")
    settings = {setting.key: setting for setting in list_settings(reader.read(), reader.environ)}
    assert (settings["server.port"].value, settings["server.port"].origin) == (9000, f"{tmp_path}/dragoman.toml:2")
    assert settings["server.host"].origin == "default"
    assert settings["client key"].origin == "environment DRAGOMAN_API_KEY"
    assert settings["store.url"].value == "postgresql://me:***@db/x?password=***"
    shown = str(list(settings.values()))
    secrets = ("hunter2", "hunter3", "hunter4", "sk-fake-0123456789", "fake-client-key")
    assert not any(secret in shown for secret in secrets)


def test_every_section_of_a_file_is_listed(tmp_path: Path) -> None:
    toml = """\
[responses]
on_disconnect = "park"
[tools.web_search]
backend = "mcp"
command = ["search-server", "--token", "hunter4"]
[tools.web_fetch]
max_chars = 99
"""
    reader = source(tmp_path, toml)
    config = reader.read()
    settings = {setting.key: setting for setting in list_settings(config, reader.environ)}
    assert set(config.origins) <= set(settings)
    assert settings["responses.on_disconnect"].value == "park"
    assert settings["tools.web_search.command"].value == ["search-server", "***"]
    assert (settings["tools.web_fetch.max_chars"].value, settings["tools.web_fetch.timeout_s"].origin) == (
        99,
        "default",
    )


def test_the_proxies_of_the_environment_are_settings_too(tmp_path: Path) -> None:
    reader = source(tmp_path, HTTPS_PROXY="http://me:hunter2@proxy:3128", NO_PROXY="example.com")
    settings = {setting.key: setting.value for setting in list_settings(reader.read(), reader.environ)}
    assert settings["proxy to https://"] == "http://me:***@proxy:3128"
    assert settings["no proxy to"] == ["this machine", "example.com"]


def test_all_problems_of_a_file_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        source(tmp_path, '[server]\nprot = 1\n[retry]\nattempts = "x"\n').read()
    assert len(raised.value.problems) == 2


def test_flags_win_over_the_file_and_the_file_is_named(tmp_path: Path) -> None:
    reader = source(tmp_path)
    config = reader.read({"server.port": 7000})
    assert config.server.port == 7000
    assert reader.find_file() == tmp_path / "dragoman.toml"
    assert describe_source(config) == str(tmp_path / "dragoman.toml")
    assert "no dragoman.toml" in describe_source(source(tmp_path / "empty", None).read())


def test_without_providers_only_servers_of_this_machine_are_added(tmp_path: Path) -> None:
    config = asyncio.run(read_with_local_servers(source(tmp_path, None)))
    assert {provider.kind for provider in config.providers.values()} == {"echo"}
    assert suggest_model(config) == "echo"


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1"), ("10.0.0.1", "http://10.0.0.1:1")],
)
def test_the_address_is_one_that_a_client_here_can_reach(host: str, url: str) -> None:
    assert base_url(host, 1) == url


def test_a_short_key_is_a_problem_only_where_others_can_reach_the_gateway(tmp_path: Path) -> None:
    for host, is_problem in (("127.0.0.1", False), ("0.0.0.0", True)):
        reader = source(tmp_path, f'[server]\nhost = "{host}"\n', PROXY_API_KEY="short-one")
        problem = find_short_key(reader.read(), reader.environ)
        assert (problem is not None) == is_problem
    assert problem is not None
    assert "$PROXY_API_KEY has 9 characters" in problem
    assert client_key_variable(reader.environ) == "PROXY_API_KEY"

"""The environment: names of older gateways, vendors' keys, client keys, and the .env file."""

from pathlib import Path

import pytest

from dragoman.config.environment import parse_dotenv
from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.config.secret import Secret, resolve_secret
from dragoman.config.settings import Config, KiroProviderConfig
from tables import each_row

SEED_NAMES = {
    "PROXY_API_KEY": "sk-fake-proxy",
    "REFRESH_TOKEN": "fake-refresh-token",
    "PROFILE_ARN": "arn:aws:codewhisperer:us-east-1:0:profile/FAKE",
    "KIRO_REGION": "eu-central-1",
    "TOKEN_REFRESH_THRESHOLD": "300",
    "MAX_RETRIES": "5",
    "BASE_RETRY_DELAY": "0.25",
    "MODEL_CACHE_TTL": "60",
    "DEFAULT_MAX_INPUT_TOKENS": "100000",
    "TOOL_DESCRIPTION_MAX_LENGTH": "5000",
    "DEBUG_MODE": "errors",
    "DEBUG_DIR": "debug_logs",
}


def kiro_of(config: Config, name: str = "kiro") -> KiroProviderConfig:
    provider = config.providers[name]
    assert isinstance(provider, KiroProviderConfig)
    return provider


def check_seed_names(config: Config, directory: Path) -> None:
    kiro = kiro_of(config)
    assert list(config.providers) == ["kiro"]
    assert kiro.profile_arn == "arn:aws:codewhisperer:us-east-1:0:profile/FAKE"
    assert (kiro.region, kiro.refresh_margin_s, kiro.model_cache_ttl_s) == ("eu-central-1", 300.0, 60.0)
    assert (kiro.default_max_input_tokens, kiro.tool_description_max) == (100_000, 5_000)
    assert (config.retry.attempts, config.retry.base_s) == (5, 0.25)
    assert (config.debug.capture, config.debug.directory) == ("errors", directory / "debug_logs")
    assert config.client_key == Secret("sk-fake-proxy")
    assert config.warnings == ()


def test_the_names_of_older_gateways_configure_kiro(tmp_path: Path) -> None:
    config = ConfigSource(None, SEED_NAMES, tmp_path, tmp_path).read()
    check_seed_names(config, tmp_path)
    credentials = kiro_of(config).credentials
    assert credentials is not None
    assert str(credentials) == "env:REFRESH_TOKEN"
    assert resolve_secret(credentials, SEED_NAMES) == Secret("fake-refresh-token")
    assert config.origins["providers.kiro.region"] == "environment KIRO_REGION"


def test_the_same_names_work_from_a_dotenv_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("".join(f'{name}="{value}"\n' for name, value in SEED_NAMES.items()))
    config = ConfigSource(None, {}, tmp_path, tmp_path).read()
    check_seed_names(config, tmp_path)
    credentials = kiro_of(config).credentials
    assert credentials is not None
    assert resolve_secret(credentials, {}) == Secret("fake-refresh-token")
    assert config.origins["retry.attempts"] == f"{tmp_path / '.env'}:6 MAX_RETRIES"


def test_the_environment_wins_over_the_dotenv_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MAX_RETRIES=7\nBASE_RETRY_DELAY=2\n")
    config = ConfigSource(None, {"MAX_RETRIES": "5"}, tmp_path, tmp_path).read()
    assert (config.retry.attempts, config.retry.base_s) == (5, 2.0)


def test_only_known_names_are_taken_from_a_dotenv_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=sk-fake-1\nDRAGOMAN_API_KEY=sk-fake-2\nDRAGOMAN_CONFIG=x.toml\n")
    config = ConfigSource(None, {}, tmp_path, tmp_path).read()
    assert list(config.providers) == ["echo"]
    assert config.client_key is None


def test_a_region_alone_makes_no_provider(tmp_path: Path) -> None:
    assert list(ConfigSource(None, {"KIRO_REGION": "eu-west-1"}, tmp_path, tmp_path).read().providers) == ["echo"]


def test_the_environment_fills_the_gaps_of_a_configured_kiro_provider(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[providers.work]\nkind = "kiro"\nregion = "us-west-2"\n')
    config = ConfigSource(None, SEED_NAMES, tmp_path, tmp_path).read()
    assert list(config.providers) == ["work"]
    assert kiro_of(config, "work").region == "us-west-2"
    assert str(kiro_of(config, "work").credentials) == "env:REFRESH_TOKEN"
    assert config.origins["providers.work.region"] == f"{tmp_path / 'dragoman.toml'}:3"
    assert config.origins["providers.work.profile_arn"] == "environment PROFILE_ARN"


@pytest.mark.parametrize(
    ("value", "path"),
    [("~/creds.json", "/home/someone/creds.json"), ("creds.json", "{cwd}/creds.json"), ("/etc/c.json", "/etc/c.json")],
)
def test_a_credentials_file_comes_before_a_token(tmp_path: Path, value: str, path: str) -> None:
    environ = {"KIRO_CREDS_FILE": value, "REFRESH_TOKEN": "fake-refresh-token"}
    credentials = kiro_of(ConfigSource(None, environ, tmp_path, Path("/home/someone")).read()).credentials
    assert credentials is not None
    assert credentials.text == path.format(cwd=tmp_path)


def test_a_sample_token_is_ignored_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text('\nREFRESH_TOKEN="your_kiro_refresh_token"\n')
    config = ConfigSource(None, {}, tmp_path, tmp_path).read()
    assert list(config.providers) == ["echo"]
    assert config.warnings == (f"{tmp_path / '.env'}:2 REFRESH_TOKEN: ignored, it is a sample value",)


@pytest.mark.parametrize(("name", "value"), [("DEBUG_MODE", "true"), ("MAX_RETRIES", "many"), ("MAX_RETRIES", "0")])
def test_a_value_meant_for_another_program_is_a_warning(tmp_path: Path, name: str, value: str) -> None:
    config = ConfigSource(None, {name: value}, tmp_path, tmp_path).read()
    assert (config.debug.capture, config.retry.attempts) == ("off", 3)
    (warning,) = config.warnings
    assert warning.startswith(f"environment {name}: ignored: ")


def test_a_debug_mode_may_be_written_in_capitals(tmp_path: Path) -> None:
    config = ConfigSource(None, {"DEBUG_MODE": "ALL"}, tmp_path, tmp_path).read()
    assert (config.debug.capture, config.warnings) == ("all", ())


@pytest.mark.parametrize("name", ["DRAGOMAN_API_KEY", "PROXY_API_KEY"])
@pytest.mark.parametrize(
    "value", ["", " ", "changeme", "changeme_proxy_secret", "your-api-key", "your-api-key-here", "your_proxy_secret"]
)
def test_a_sample_client_key_is_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"environment: {name}: empty or a sample value"):
        ConfigSource(None, {name: value}, tmp_path, tmp_path).read()


def test_a_sample_client_key_in_a_dotenv_file_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# mine\nPROXY_API_KEY=changeme_proxy_secret\n")
    with pytest.raises(ConfigError, match=r"\.env:2: PROXY_API_KEY: empty or a sample value"):
        ConfigSource(None, {}, tmp_path, tmp_path).read()


def test_our_own_variable_wins_over_the_older_name(tmp_path: Path) -> None:
    environ = {"DRAGOMAN_API_KEY": " sk-fake-new ", "PROXY_API_KEY": "changeme"}
    assert ConfigSource(None, environ, tmp_path, tmp_path).read().client_key == Secret("sk-fake-new")


def test_keys_of_vendors_make_providers(tmp_path: Path) -> None:
    environ = {"OPENAI_API_KEY": "sk-fake-1", "ANTHROPIC_API_KEY": "sk-fake-2"}
    config = ConfigSource(None, environ, tmp_path, tmp_path).read()
    assert list(config.providers) == ["openai", "anthropic"]
    openai, anthropic = config.providers["openai"], config.providers["anthropic"]
    assert (openai.kind, openai.endpoint) == ("openai", "https://api.openai.com/v1")
    assert (anthropic.kind, anthropic.endpoint) == ("anthropic", "https://api.anthropic.com/v1")
    assert openai.api_key is not None
    assert resolve_secret(openai.api_key, environ) == Secret("sk-fake-1")
    assert config.origins["providers.openai.api_key"] == "environment OPENAI_API_KEY"


@pytest.mark.parametrize(
    ("base_url", "endpoint"),
    [
        ("http://127.0.0.1:9999/v1", "http://127.0.0.1:9999/v1"),
        ("http://proxy.example", "http://proxy.example/v1"),
        ("http://127.0.0.1:8484/v1", "https://api.openai.com/v1"),
        ("http://localhost:8484", "https://api.openai.com/v1"),
        ("", "https://api.openai.com/v1"),
    ],
)
def test_the_base_url_counts_unless_it_is_our_own(tmp_path: Path, base_url: str, endpoint: str) -> None:
    environ = {"OPENAI_API_KEY": "sk-fake-1", "OPENAI_BASE_URL": base_url}
    assert ConfigSource(None, environ, tmp_path, tmp_path).read().providers["openai"].endpoint == endpoint


def test_the_own_address_follows_the_configured_port(tmp_path: Path) -> None:
    environ = {"OPENAI_API_KEY": "sk-fake-1", "OPENAI_BASE_URL": "http://127.0.0.1:9000/v1"}
    config = ConfigSource(None, environ, tmp_path, tmp_path).read({"server.port": 9000})
    assert config.providers["openai"].endpoint == "https://api.openai.com/v1"


def test_a_broken_base_url_gets_no_key(tmp_path: Path) -> None:
    environ = {"OPENAI_API_KEY": "sk-fake-1", "OPENAI_BASE_URL": "proxy.example"}
    config = ConfigSource(None, environ, tmp_path, tmp_path).read()
    assert list(config.providers) == ["echo"]
    assert len(config.warnings) == 1


@pytest.mark.parametrize("value", ["", "dgm_abcdefgh", "sk-fake-mine", "your-api-key", "sk-..."])
def test_a_key_of_this_gateway_is_no_vendors_key(tmp_path: Path, value: str) -> None:
    environ = {"OPENAI_API_KEY": value, "DRAGOMAN_API_KEY": "sk-fake-mine"}
    assert list(ConfigSource(None, environ, tmp_path, tmp_path).read().providers) == ["echo"]


def test_a_configured_provider_of_the_kind_keeps_the_environment_out(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text(
        '[providers.mine]\nkind = "openai"\napi_key = "sk-fake-1"\n[providers.anthropic]\nkind = "echo"\n'
    )
    environ = {"OPENAI_API_KEY": "sk-fake-2", "ANTHROPIC_API_KEY": "sk-fake-3"}
    config = ConfigSource(None, environ, tmp_path, tmp_path).read()
    assert {name: provider.kind for name, provider in config.providers.items()} == {
        "mine": "openai",
        "anthropic": "echo",
    }


@each_row(
    ("line", "name", "value"),
    [
        ("A=b", "A", "b"),
        ("  A = b  ", "A", "b"),
        ("export A=b", "A", "b"),
        ('A="b c"', "A", "b c"),
        ("A='b \"c\" \\n'", "A", 'b "c" \\n'),
        ('A="say \\"hi\\""', "A", 'say "hi"'),
        ('A="C:\\new\\table"', "A", "C:\\new\\table"),
        ('A="b # c" # comment', "A", "b # c"),
        ("A=b # comment", "A", "b"),
        ("A=b#c", "A", "b#c"),
        ("A=#c", "A", ""),
        ("A=", "A", ""),
        ('A=""', "A", ""),
        ("A=b=c", "A", "b=c"),
        ("A=a b", "A", "a b"),
        ("\ufeffA=b\r", "A", "b"),
    ],
)
def test_a_dotenv_line_is_read(line: str, name: str, value: str) -> None:
    variables = parse_dotenv(line)
    assert {key: variable.value for key, variable in variables.items()} == {name: value}


@pytest.mark.parametrize("line", ["# A=b", "", "A", "=b", "1A=b", 'A="b', "A='b", "export", "A-B=c"])
def test_a_line_that_is_no_assignment_is_passed_over(line: str) -> None:
    assert parse_dotenv(line) == {}


def test_dotenv_lines_are_counted_and_the_last_one_wins() -> None:
    variables = parse_dotenv("# one\n\nA=1\nB=2\nA=3\n")
    assert (variables["A"].value, variables["A"].line, variables["B"].line) == ("3", 5, 4)

"""Secrets: their sources, the messages about missing ones, and that they are never printed."""

import pickle
from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.config.secret import Secret, SecretSource, is_placeholder, resolve_secret
from tables import each_row

CANARY = "sk-fake-canary-0123456789"


def test_a_secret_never_prints_itself() -> None:
    for thing in (Secret(CANARY), SecretSource(CANARY)):
        shown = (repr(thing), str(thing), f"{thing}", f"{thing!r}", repr([thing]), repr({"k": thing}))
        assert all(CANARY not in text for text in shown)
        with pytest.raises(TypeError):
            pickle.dumps(thing)
    assert Secret(CANARY).reveal() == CANARY


def test_a_reference_may_be_shown() -> None:
    assert str(SecretSource("env:LOCAL_KEY")) == "env:LOCAL_KEY"
    assert str(SecretSource("file:/run/secret")) == "file:/run/secret"


def test_secrets_of_a_whole_configuration_do_not_show(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text(
        f'store.shared = "redis://:{CANARY}@127.0.0.1/0"\n'
        f'[providers.a]\nkind = "openai"\napi_key = "{CANARY}"\nproxy = "http://u:{CANARY}@127.0.0.1:1"\n'
        f'headers = {{ x-token = "{CANARY}" }}\n'
        f'[providers.b]\nkind = "kiro"\ncredentials = "{CANARY}"\n'
    )
    config = ConfigSource(None, {"DRAGOMAN_API_KEY": CANARY}, tmp_path, tmp_path).read()
    assert config.client_key == Secret(CANARY)
    assert CANARY not in repr(config)
    assert CANARY not in str(config)


def test_env_file_and_literal_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xef\xbb\xbf  from-file \n")
    assert resolve_secret(SecretSource("env:K"), {"K": " from-env\n"}) == Secret("from-env")
    assert resolve_secret(SecretSource(f"file:{tmp_path / 'key'}"), {}) == Secret("from-file")
    assert resolve_secret(SecretSource("it:self"), {}) == Secret("it:self")


def test_a_rotated_variable_is_seen_at_the_next_use() -> None:
    environ = {"K": "old"}
    source = SecretSource("env:K")
    assert resolve_secret(source, environ).reveal() == "old"
    environ["K"] = "new"
    assert resolve_secret(source, environ).reveal() == "new"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env:ABSENT", "environment variable ABSENT is not set"),
        ("env:EMPTY", "environment variable EMPTY is empty"),
        ("env:SPLIT", "control characters"),
        ("file:absent", "cannot read secret file .*/absent: No such file"),
        ("file:empty", "secret file .*/empty is empty"),
        ("file:binary", "not UTF-8"),
        ("file:large", "larger than"),
        ("file:split", "control characters"),
    ],
)
def test_a_missing_secret_names_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "split").write_text(f"{CANARY}\r\nx-evil: 1")
    (tmp_path / "dragoman.toml").write_text(f'[providers.a]\nkind = "openai"\n\napi_key = "{text}"\n')
    source = ConfigSource(None, {}, tmp_path, tmp_path).read().providers["a"].api_key
    assert source is not None
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_secret(source, {"EMPTY": " ", "SPLIT": f"{CANARY}\r\nx-evil: 1"})
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.key) == (
        str(tmp_path / "dragoman.toml"),
        4,
        "providers.a.api_key",
    )
    assert CANARY not in str(caught.value)


@each_row(
    "value",
    [
        *(
            "",
            " ",
            "changeme",
            "CHANGEME123",
            "changeme_proxy_secret",
            "change-me",
            "your-api-key",
            "your_api_key_here",
        ),
        *("your_proxy_secret", "YOUR-API-KEY", "<key>", "sk-...", "dgm_…", "secret", "password", "sk-your-key"),
    ],
)
def test_samples_are_placeholders(value: str) -> None:
    assert is_placeholder(value)


@pytest.mark.parametrize("value", ["dgm_a8Zk", "sk-fake-1", "local", "test", "my-change", "correct horse"])
def test_secrets_of_ones_own_are_not_placeholders(value: str) -> None:
    assert not is_placeholder(value)

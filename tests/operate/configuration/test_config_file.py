"""dragoman.toml: a first file, its provider sections, and its text without secrets."""

from pathlib import Path

import pytest

from dragoman.config.discovery import LocalServer
from dragoman.config.load import ConfigSource
from dragoman.operate import AdminError, InvalidArgument
from dragoman.operate.configuration.config_file import (
    CannotShow,
    ShownFile,
    config_path,
    describe_change,
    find_choices,
    find_vendor,
    list_providers,
    make_choice,
    new_file_path,
    plan_addition,
    plan_removal,
    plan_write,
    render_config,
    restore_secrets,
    show_file,
)

TOML = """\
[store]
url = "postgresql://me:hunter2-long@db/x"
[limits]
webhook = "https://hooks.example.com/budget-secret"
[providers.up]
kind = "openai-compatible"
endpoint = "http://127.0.0.1:9/v1"
api_key = "fake-plain-value-0123456789"   # no known form
headers = { x-extra = "header-secret-value" }
[providers.other]
kind = "openai"
api_key = "env:OTHER_KEY"
# api_key = "sk-fake-an-old-key-0123456789"
"""
SECRETS = ("hunter2-long", "budget-secret", "fake-plain-value", "header-secret-value", "sk-fake-an-old-key")


def test_the_file_configures_what_was_found(tmp_path: Path) -> None:
    environ = {"GROQ_API_KEY": "gsk-fake-1", "OPENAI_API_KEY": "sk-fake-2", "OPENAI_BASE_URL": "https://o.example/v1"}
    found = ConfigSource(None, environ, tmp_path, tmp_path).read(servers=[LocalServer("ollama", 11434, ("ollama",))])
    choices = [*find_choices(found), make_choice("azure-openai", {"resource": "acme"})]
    text = render_config(choices, 9000, "errors")
    assert "fake" not in text
    (tmp_path / "dragoman.toml").write_text(text)
    written = ConfigSource(None, environ, tmp_path, tmp_path).read()
    assert (written.server.port, written.debug.capture) == (9000, "errors")
    assert {name: provider.endpoint for name, provider in written.providers.items()} == {
        "openai": "https://o.example/v1",
        "groq": "https://api.groq.com/openai/v1",
        "ollama": "http://127.0.0.1:11434/v1",
        "azure-openai": "https://acme.openai.azure.com/openai/v1",
    }
    assert written.providers["ollama"].quirks == ("ollama",)


def test_the_file_is_the_named_one_or_the_users_or_the_directorys(tmp_path: Path) -> None:
    place = ConfigSource(None, {}, tmp_path / "work", tmp_path)
    assert new_file_path(place, in_directory=False) == tmp_path / ".config/dragoman/dragoman.toml"
    assert new_file_path(place, in_directory=True) == tmp_path / "work/dragoman.toml"
    assert new_file_path(ConfigSource("/x.toml", {}, tmp_path, tmp_path), in_directory=True) == Path("/x.toml")


def source(directory: Path, text: str, **environ: str) -> ConfigSource:
    (directory / "dragoman.toml").write_text(text)
    return ConfigSource(None, environ, directory, directory)


def test_a_row_names_credential_origin_and_problem_but_no_secret(tmp_path: Path) -> None:
    text = '[providers.a]\nkind = "groq"\n[providers.b]\nkind = "openai"\napi_key = "sk-fake-literal"\n'
    config = source(tmp_path, text).read()
    first, second = list_providers(config, {})
    assert (first.kind, first.credential) == ("groq", "env:GROQ_API_KEY")
    assert first.problem == "environment variable GROQ_API_KEY is not set"
    assert (second.credential, second.problem) == ("***", "")
    assert second.origin == f"{tmp_path}/dragoman.toml:4"


def test_an_addition_that_would_make_the_file_invalid_is_refused(tmp_path: Path) -> None:
    place = source(tmp_path, "")
    with pytest.raises(AdminError, match=r"was not changed.*\n.*dragoman.toml:3: providers.x.port: unknown key"):
        plan_addition(place, "x", {"kind": "groq", "port": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["dragoman.toml"]


def test_additions_and_removals_undo_each_other(tmp_path: Path) -> None:
    place = source(tmp_path, "[server]\nport = 1\n")
    addition = plan_addition(place, "x", {"kind": "groq"})
    (tmp_path / "dragoman.toml").write_text(addition.new)
    assert plan_removal(place, "x").new.strip() == "[server]\nport = 1"


def test_a_new_file_belongs_to_the_user_not_to_the_directory(tmp_path: Path) -> None:
    place = ConfigSource(None, {"XDG_CONFIG_HOME": "/etc/mine"}, tmp_path, tmp_path)
    assert config_path(place.read(), place.environ, place.home) == Path("/etc/mine/dragoman/dragoman.toml")


def test_a_kind_is_a_vendor_or_one_of_ours() -> None:
    assert find_vendor("openai") is None
    vendor = find_vendor("groq")
    assert vendor is not None
    assert vendor.title == "Groq"
    with pytest.raises(InvalidArgument, match='did you mean "groq"'):
        find_vendor("grog")


def show_toml(directory: Path, toml: str = TOML) -> ShownFile:
    file = directory / "dragoman.toml"
    file.write_text(toml)
    source = ConfigSource(str(file), {}, directory, directory)
    return show_file(file, lambda text: source.read(text=text))


def test_no_secret_is_shown_and_all_are_put_back(tmp_path: Path) -> None:
    file = show_toml(tmp_path)
    assert not any(secret in file.text for secret in SECRETS)
    assert 'api_key = "env:OTHER_KEY"' in file.text
    assert restore_secrets(file.text, file.hidden) == TOML
    assert (file.exists, file.is_writable) == (True, True)


def test_a_change_is_written_with_the_secrets_and_shown_without(tmp_path: Path) -> None:
    file = show_toml(tmp_path)
    text = file.text.replace(":9/v1", ":10/v1").replace("x-extra", "x-other")
    diff = describe_change(file, text)
    assert '+endpoint = "http://127.0.0.1:10/v1"' in diff
    assert not any(secret in diff for secret in SECRETS)
    edit = plan_write(file, text)
    assert edit.new == TOML.replace(":9/v1", ":10/v1").replace("x-extra", "x-other")
    backup = edit.apply()
    assert backup is not None
    assert backup.read_text() == TOML
    assert show_toml(tmp_path, edit.new).version != file.version


def test_an_unknown_number_is_an_error(tmp_path: Path) -> None:
    file = show_toml(tmp_path)
    for number in (0, 99):
        with pytest.raises(InvalidArgument, match=f"<hidden {number}>"):
            plan_write(file, f'{file.text}\n# "<hidden {number}>"')


@pytest.mark.parametrize(
    "toml",
    [
        TOML.replace("fake-plain-value", "fake\\u002dplain-value"),  # written with an escape
        TOML + '# "<hidden 1>"\n',
        "not toml",
        '[providers.up]\nkind = "nothing"\napi_key = "sk-fake-0123456789012345"\n',
    ],
)
def test_a_file_whose_secrets_cannot_be_identified_is_not_shown(tmp_path: Path, toml: str) -> None:
    with pytest.raises(CannotShow) as refused:
        show_toml(tmp_path, toml)
    assert "0123456789" not in str(refused.value)


def test_a_file_that_does_not_exist_is_empty_and_can_be_made(tmp_path: Path) -> None:
    config = ConfigSource(None, {"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path, tmp_path).read()
    path = config_path(config, {"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path)
    assert path == tmp_path / "dragoman" / "dragoman.toml"
    file = show_file(path, lambda text: config)
    assert (file.text, file.exists, file.is_writable) == ("", False, True)

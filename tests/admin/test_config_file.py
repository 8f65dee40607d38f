"""The configuration file as text: secrets are hidden, put back, and never in a diff."""

from functools import partial
from pathlib import Path

import pytest

from dragoman.admin.config_file import (
    CannotShow,
    ShownFile,
    config_path,
    describe_change,
    plan_write,
    restore_secrets,
    show_file,
)
from dragoman.admin.errors import InvalidArgument
from dragoman.config import load

TOML = """\
[store]
url = "postgresql://me:hunter2-long@db/x"
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
SECRETS = ("hunter2-long", "fake-plain-value", "header-secret-value", "sk-fake-an-old-key")


def shown(directory: Path, toml: str = TOML) -> ShownFile:
    file = directory / "dragoman.toml"
    file.write_text(toml)
    read = partial(load, str(file), {}, directory, directory, {}, ())
    return show_file(file, lambda text: read(text))


def test_no_secret_is_shown_and_all_are_put_back(tmp_path: Path) -> None:
    file = shown(tmp_path)
    assert not any(secret in file.text for secret in SECRETS)
    assert 'api_key = "env:OTHER_KEY"' in file.text
    assert restore_secrets(file.text, file.hidden) == TOML
    assert (file.exists, file.is_writable) == (True, True)


def test_a_change_is_written_with_the_secrets_and_shown_without(tmp_path: Path) -> None:
    file = shown(tmp_path)
    text = file.text.replace(":9/v1", ":10/v1").replace("x-extra", "x-other")
    diff = describe_change(file, text)
    assert '+endpoint = "http://127.0.0.1:10/v1"' in diff
    assert not any(secret in diff for secret in SECRETS)
    edit = plan_write(file, text)
    assert edit.new == TOML.replace(":9/v1", ":10/v1").replace("x-extra", "x-other")
    backup = edit.apply()
    assert backup.read_text() == TOML
    assert shown(tmp_path, edit.new).version != file.version


def test_an_unknown_number_is_an_error(tmp_path: Path) -> None:
    file = shown(tmp_path)
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
        shown(tmp_path, toml)
    assert "0123456789" not in str(refused.value)


def test_a_file_that_does_not_exist_is_empty_and_can_be_made(tmp_path: Path) -> None:
    config = load(None, {"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path, tmp_path)
    path = config_path(config, {"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path)
    assert path == tmp_path / "dragoman" / "dragoman.toml"
    file = show_file(path, lambda text: config)
    assert (file.text, file.exists, file.is_writable) == ("", False, True)

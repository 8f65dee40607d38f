"""Provider sections: what is listed, added and removed, without a terminal."""

from pathlib import Path

import pytest

from dragoman.admin.configuration import ConfigSource
from dragoman.admin.errors import AdminError, InvalidArgument
from dragoman.admin.provider_sections import config_path, find_vendor, list_providers, plan_addition, plan_removal


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
    assert config_path(place, place.read()) == Path("/etc/mine/dragoman/dragoman.toml")


def test_a_kind_is_a_vendor_or_one_of_ours() -> None:
    assert find_vendor("openai") is None
    vendor = find_vendor("groq")
    assert vendor is not None
    assert vendor.title == "Groq"
    with pytest.raises(InvalidArgument, match='did you mean "groq"'):
        find_vendor("grog")

"""The first dragoman.toml: valid, with comments, and without secrets."""

from pathlib import Path

from dragoman.admin.configuration import ConfigSource
from dragoman.admin.initial_config import find_choices, make_choice, new_file_path, render_config
from dragoman.config import LocalServer, load


def test_the_file_configures_what_was_found(tmp_path: Path) -> None:
    environ = {"GROQ_API_KEY": "gsk-fake-1", "OPENAI_API_KEY": "sk-fake-2", "OPENAI_BASE_URL": "https://o.example/v1"}
    found = load(None, environ, tmp_path, tmp_path, servers=[LocalServer("ollama", 11434, ("ollama",))])
    choices = [*find_choices(found), make_choice("azure-openai", {"resource": "acme"})]
    text = render_config(choices, 9000, "errors")
    assert "fake" not in text
    (tmp_path / "dragoman.toml").write_text(text)
    written = load(None, environ, tmp_path, tmp_path)
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

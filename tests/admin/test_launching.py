"""What a launched client gets: its arguments and environment, without a process."""

from pathlib import Path

import pytest

from dragoman.admin.clients import RECIPES
from dragoman.admin.configuration import Target
from dragoman.admin.launching import LAUNCHES, find_program, find_shared_directory, find_window, make_command
from dragoman.config import load

TO = Target("http://127.0.0.1:8484", 'my "model"', 200_000)


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_key_is_in_the_environment_and_not_in_the_arguments(name: str) -> None:
    launch = LAUNCHES[name]
    assert launch.recipe in RECIPES
    words, environ = make_command(launch, "/bin/x", TO, ("a",), "fake-key-1", {"KEPT": "1"})
    assert (words[0], words[-1], environ["KEPT"]) == ("/bin/x", "a", "1")
    assert "fake-key-1" in environ.values()
    assert "fake-key-1" not in " ".join(words)
    assert any(TO.root in text for text in (*words, *environ.values()))


def test_codex_gets_its_settings_as_toml() -> None:
    words, _ = make_command(LAUNCHES["codex"], "codex", TO, (), "k", {})
    assert words[1:] == [
        "-c",
        "model_provider=dragoman",
        "-c",
        'model_providers.dragoman={name="dragoman",base_url="http://127.0.0.1:8484/v1",'
        'env_key="DRAGOMAN_API_KEY",wire_api="responses"}',
        "-c",
        'model="my \\"model\\""',
        "-c",
        "model_context_window=200000",
    ]


def test_the_window_is_that_of_the_model_that_answers(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[[models]]\nname = "mine"\nto = ["x/claude-opus-5-5"]\n')
    config = load(None, {}, tmp_path, tmp_path)
    assert find_window(config, "mine") == find_window(config, "anthropic/claude-opus-5-5") == 1_000_000
    assert find_window(config, "echo") is None


def test_only_an_executable_file_is_a_program(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("")
    assert find_program("tool", {"PATH": str(tmp_path)}) is None
    (tmp_path / "tool").chmod(0o755)
    assert find_program("tool", {"PATH": f"/nowhere:{tmp_path}"}) == str(tmp_path / "tool")


def test_a_directory_that_others_can_write_to_is_found(tmp_path: Path) -> None:
    private, shared = tmp_path / "private", tmp_path / "private" / "shared"
    (shared / "deeper").mkdir(parents=True)
    above = find_shared_directory(private / "settings.json")
    shared.chmod(0o777)
    assert find_shared_directory(shared / "deeper" / "settings.json") == shared
    assert find_shared_directory(private / "settings.json") == above

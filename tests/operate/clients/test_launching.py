"""What a launched client gets: its arguments and environment, without a process."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.config.load import ConfigSource
from dragoman.operate.clients.client_settings import claude_environment
from dragoman.operate.clients.connecting import RECIPES
from dragoman.operate.clients.launching import (
    KEPT_FILES,
    LAUNCHES,
    ClientStart,
    find_program,
    find_shared_directory,
    find_window,
    make_command,
)
from dragoman.operate.configuration.effective import GatewayTarget

TO = GatewayTarget("http://127.0.0.1:8484", 'my "model"', 200_000)


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_key_is_in_the_environment_and_not_in_the_arguments(name: str) -> None:
    launch = LAUNCHES[name]
    assert launch.recipe in RECIPES
    words, environ = make_command(ClientStart(launch, "/bin/x", ("a",)), TO, "fake-key-1", {"KEPT": "1"})
    assert (words[0], words[-1], environ["KEPT"]) == ("/bin/x", "a", "1")
    assert "fake-key-1" in environ.values()
    assert "fake-key-1" not in " ".join(words)
    assert any(TO.root in text for text in (*words, *environ.values()))


def test_codex_gets_its_settings_as_toml() -> None:
    words, _ = make_command(ClientStart(LAUNCHES["codex"], "codex"), TO, "k", {})
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
    section = '[providers.up]\nkind = "openai-compatible"\nendpoint = "http://127.0.0.1:9/v1"\ncontext_window = 4096\n'
    routes = '[[models]]\nname = "mine"\nto = ["x/claude-opus-5-5"]\n[[models]]\nname = "local"\nto = ["up/m"]\n'
    (tmp_path / "dragoman.toml").write_text(section + routes)
    config = ConfigSource(None, {}, tmp_path, tmp_path).read()
    assert find_window(config, "mine", {}) == find_window(config, "anthropic/claude-opus-5-5", {}) == 1_000_000
    assert find_window(config, "mine", {"mine": 200_000}) == 200_000
    assert find_window(config, "local", {}) == find_window(config, "up/m", {}) == 4096
    assert find_window(config, "echo", {}) is None


def start(name: str, home: Path, **environ: str) -> tuple[list[str], dict[str, str]]:
    return make_command(ClientStart(LAUNCHES[name], name), TO, "k", {"HOME": str(home), **environ})


def test_claude_codes_other_models_are_set_unless_the_user_has_set_them(tmp_path: Path) -> None:
    words, environ = start("claude", tmp_path)
    names = [name for name in environ if name.startswith("ANTHROPIC_") and name.endswith("_MODEL")]
    assert sorted(names) == [
        "ANTHROPIC_DEFAULT_FABLE_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL",
    ]
    assert {environ[name] for name in names} == {TO.model}
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").write_text('{"env": {"ANTHROPIC_DEFAULT_OPUS_MODEL": "theirs"}}')
    words, environ = start("claude", tmp_path, ANTHROPIC_DEFAULT_SONNET_MODEL="mine")
    assert environ["ANTHROPIC_DEFAULT_SONNET_MODEL"] == "mine"
    assert "ANTHROPIC_DEFAULT_OPUS_MODEL" not in environ
    assert "SONNET" not in words[2]
    assert "OPUS" not in words[2]


@pytest.mark.parametrize(("model", "value"), [("up/gpt-5.6", "0"), ("anthropic/claude-opus-5-5", None), (None, None)])
def test_claude_codes_billing_line_is_left_out_for_models_of_others(model: str | None, value: str | None) -> None:
    target = replace(TO, model=model)
    assert claude_environment(target).get("CLAUDE_CODE_ATTRIBUTION_HEADER") == value


def test_opencodes_small_model_is_set_unless_the_user_has_set_it(tmp_path: Path) -> None:
    def read() -> object:
        _, environ = start("opencode", tmp_path)
        return msgspec.json.decode(environ["OPENCODE_CONFIG_CONTENT"], type=dict[str, object]).get("small_model")

    assert read() == f"dragoman/{TO.model}"
    settings = tmp_path / ".config" / "opencode" / "opencode.json"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"small_model": "theirs/x"}')
    assert read() is None
    settings.write_text("{ malformed")
    assert read() == f"dragoman/{TO.model}"


def test_aider_gets_its_other_models_and_the_window_in_a_file_of_ours(tmp_path: Path) -> None:
    (tmp_path / ".aider.conf.yml").write_text("editor-model: theirs\n")
    _, environ = start("aider", tmp_path)
    assert (environ["AIDER_MODEL"], environ["AIDER_WEAK_MODEL"]) == (f"openai/{TO.model}", f"openai/{TO.model}")
    assert "AIDER_EDITOR_MODEL" not in environ
    file = Path(environ["AIDER_MODEL_METADATA_FILE"])
    assert file.parent == tmp_path / ".local" / "share" / "dragoman" / "launch"
    written = msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, object]])
    assert written[f"openai/{TO.model}"]["max_input_tokens"] == TO.window
    assert start("aider", tmp_path, AIDER_MODEL_METADATA_FILE="mine")[1]["AIDER_MODEL_METADATA_FILE"] == "mine"


def test_gemini_clis_own_models_fall_back_to_ours_and_the_users_headers_stay(tmp_path: Path) -> None:
    _, environ = start("gemini", tmp_path)
    assert environ["GEMINI_CLI_CUSTOM_HEADERS"] == f"x-dragoman-fallback-model: {TO.model}"
    _, environ = start("gemini", tmp_path, GEMINI_CLI_CUSTOM_HEADERS="x-mine: 1")
    assert environ["GEMINI_CLI_CUSTOM_HEADERS"] == f"x-mine: 1, x-dragoman-fallback-model: {TO.model}"


def test_files_of_earlier_launches_do_not_pile_up(tmp_path: Path) -> None:
    for number in range(KEPT_FILES + 3):
        to = GatewayTarget(TO.root, f"m{number}", 1000)
        _, environ = make_command(ClientStart(LAUNCHES["aider"], "aider"), to, "k", {"HOME": str(tmp_path)})
    newest = Path(environ["AIDER_MODEL_METADATA_FILE"])
    assert newest.exists()
    assert len(list(newest.parent.iterdir())) == KEPT_FILES


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

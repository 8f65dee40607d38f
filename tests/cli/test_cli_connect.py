"""`dragoman connect`: what it prints, what it writes into other programs' settings, and that it can be undone."""

import stat
import tomllib
from pathlib import Path

import msgspec
import pytest

from fakes.upstream import FakeUpstream
from shell import Shell

CLIENTS = ("claude-code", "codex", "gemini", "opencode", "aider", "cline", "cursor", "openai", "anthropic")
FILES = {
    "claude-code": ".claude/settings.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/.env",
    "opencode": ".config/opencode/opencode.json",
    "aider": ".aider.conf.yml",
}
KEPT = {
    "claude-code": '{"permissions":{"allow":["Bash(ls:*)"]},"env":{"FOO":"1"}}',
    "codex": '# mine\nmodel = "gpt-5.5"\n\n[projects."/home/me"]\ntrust_level = "trusted"\n',
    "gemini": "# mine\nGEMINI_SANDBOX=false\n",
    "opencode": '{"theme":"dark","provider":{"mine":{"npm":"x"}}}',
    "aider": "dark-mode: true\n",
}
PLAIN = {
    "claude-code": "{// no end",
    "codex": "model = \n",
    "opencode": "[]",
    "aider": "- no table\n",
}


def read_files(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_gets_the_gateways_address_and_no_key(shell: Shell, client: str) -> None:
    shell.write("dragoman.toml", "[server]\nport = 9321\n")
    before = read_files(shell.home)
    done = shell.run("connect", client, "--model", "some-model", DRAGOMAN_API_KEY="fake-key-from-outside")
    assert done.code == 0
    assert "http://127.0.0.1:9321" in done.out
    assert "some-model" in done.out
    assert "DRAGOMAN_API_KEY" in done.out
    assert "fake-key-from-outside" not in done.out + done.err
    assert read_files(shell.home) == before


@pytest.mark.rest
@pytest.mark.parametrize("client", FILES)
def test_written_twice_is_written_once_and_the_rest_is_kept(shell: Shell, client: str) -> None:
    path = shell.write(FILES[client], KEPT[client])
    path.chmod(0o640)
    first = shell.run("connect", client, "--write", "--model", "m", DRAGOMAN_API_KEY="fake-key-from-outside")
    assert first.code == 0, first.err
    assert f"+++ {path}" in first.out
    written = read_files(shell.home)
    second = shell.run("connect", client, "--write", "--model", "m")
    assert (second.code, second.out.splitlines()[0]) == (0, f"{path} already has these settings.")
    assert read_files(shell.home) == written
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert b"fake-key-from-outside" not in b"".join(written.values())
    assert "http://127.0.0.1:8484" in path.read_text()


@pytest.mark.parametrize("client", FILES)
@pytest.mark.rest
def test_undo_restores_every_byte(shell: Shell, client: str) -> None:
    shell.write(FILES[client], KEPT[client])
    before = read_files(shell.home)
    shell.run("connect", client, "--write", "--model", "claude-sonnet-4-5")  # with a known window
    shell.run("connect", client, "--write", "--model", "n")
    undone = shell.run("connect", client, "--undo")
    assert undone.code == 0, undone.err
    assert f"+++ {shell.home / FILES[client]}" in undone.out
    assert read_files(shell.home) == before
    done = shell.run("connect", client, "--undo")
    assert done.code == 1
    assert "nothing to undo" in done.err


def test_undo_keeps_what_was_edited_since_and_says_what_it_left(shell: Shell) -> None:
    file = ".config/zed/settings.json"
    shell.write(file, '{\n  "theme": "dark"\n}\n')
    shell.run("connect", "zed", "--write", "--model", "m")
    edited = shell.read(file).replace('"dark"', '"light"').replace('"display_name": "m"', '"display_name": "Mine"')
    shell.write(file, edited)
    undone = shell.run("connect", "zed", "--undo")
    assert undone.code == 0, undone.err
    assert '-        "api_url": "http://127.0.0.1:8484/v1"' in undone.out
    assert "language_models.openai_compatible.dragoman.available_models" in undone.err
    left = msgspec.json.decode(shell.read(file))
    assert left["theme"] == "light"
    assert list(left["language_models"]["openai_compatible"]["dragoman"]) == ["available_models"]
    assert not list(shell.home.glob(".config/zed/*dragoman-*"))


@pytest.mark.parametrize("client", FILES)
@pytest.mark.rest
def test_a_file_that_was_not_there_is_made_private_and_undone_to_nothing(shell: Shell, client: str) -> None:
    done = shell.run("connect", client, "--write", "--model", "m")
    assert "The old file" not in done.out
    assert stat.S_IMODE((shell.home / FILES[client]).stat().st_mode) == 0o600
    shell.run("connect", client, "--undo")
    assert read_files(shell.home) == {}


@pytest.mark.parametrize("client", PLAIN)
def test_a_file_that_cannot_be_read_is_left_alone(shell: Shell, client: str) -> None:
    path = shell.write(FILES[client], PLAIN[client])
    done = shell.run("connect", client, "--write", "--model", "m")
    assert (done.code, done.out) == (1, "")
    assert f"{path} was not changed" in done.err
    assert f"dragoman connect {client}" in done.err
    assert read_files(shell.home) == {FILES[client]: PLAIN[client].encode()}


def test_claude_code_asks_for_the_key_and_keeps_its_other_settings(shell: Shell) -> None:
    shell.write(FILES["claude-code"], KEPT["claude-code"])
    shell.run("connect", "claude-code", "--write", "--model", "echo")
    written = msgspec.json.decode(shell.read(FILES["claude-code"]), type=dict[str, object])
    assert written["permissions"] == {"allow": ["Bash(ls:*)"]}
    assert written["apiKeyHelper"] == "printenv DRAGOMAN_API_KEY"
    assert written["env"] == {
        "FOO": "1",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:8484",
        "ANTHROPIC_MODEL": "echo",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "echo",
        "ANTHROPIC_DEFAULT_FABLE_MODEL": "echo",
        "ANTHROPIC_DEFAULT_OPUS_MODEL": "echo",
        "ANTHROPIC_DEFAULT_SONNET_MODEL": "echo",
        "ANTHROPIC_SMALL_FAST_MODEL": "echo",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
    }


def test_codex_gets_a_provider_that_names_the_variable_of_the_key(shell: Shell) -> None:
    shell.write(FILES["codex"], KEPT["codex"])
    shell.run("connect", "codex", "--write")
    written = tomllib.loads(shell.read(FILES["codex"]))
    assert (written["model"], written["model_provider"]) == (
        "echo",
        "dragoman",
    )  # no provider serves the model it named
    assert written["model_providers"]["dragoman"] == {
        "name": "dragoman",
        "base_url": "http://127.0.0.1:8484/v1",
        "env_key": "DRAGOMAN_API_KEY",
        "wire_api": "responses",
    }


def find_model(shell: Shell, client: str) -> object:
    text = shell.read(FILES[client])
    if client == "codex":
        return tomllib.loads(text).get("model")
    env = msgspec.convert(msgspec.json.decode(text)["env"], dict[str, str])
    assert env.get("ANTHROPIC_MODEL") == env.get("ANTHROPIC_DEFAULT_HAIKU_MODEL")
    return env.get("ANTHROPIC_MODEL")


def write_provider(shell: Shell, url: str, more: str = "") -> None:
    section = f'[providers.up]\nkind = "openai-compatible"\nendpoint = "{url}"\nprotocol = "chat"\n'
    shell.write("dragoman.toml", section + more)


CONFIGURED = '[[models]]\nname = "any-*"\nto = ["up/*"]\n[[models]]\nname = "fast"\nto = ["up/m"]\n'


@pytest.mark.parametrize("client", ["claude-code", "codex"])
@pytest.mark.parametrize(
    ("more", "listed", "chosen"),
    [
        (CONFIGURED, ("m",), {"claude-code": "fast", "codex": "fast"}),
        ("", ("m", "gpt-5-mini", "claude-sonnet-9"), {"claude-code": "up/claude-sonnet-9", "codex": "up/gpt-5-mini"}),
        ("", ("qwen3:8b", "other"), {"claude-code": "up/qwen3:8b", "codex": "up/qwen3:8b"}),
    ],
    ids=["configured", "listed and preferred", "listed"],
)
def test_a_model_is_chosen_if_none_is_given(
    shell: Shell, client: str, more: str, listed: tuple[str, ...], chosen: dict[str, str]
) -> None:
    with FakeUpstream(models=listed) as fake:
        write_provider(shell, fake.url, more)
        done = shell.run("connect", client, "--write")
    assert done.code == 0, done.err
    assert find_model(shell, client) == chosen[client]


@pytest.mark.parametrize("present", ["mine", "any-thing", "up/mine"])
def test_a_model_that_the_settings_name_and_the_gateway_serves_is_kept(shell: Shell, present: str) -> None:
    shell.write(FILES["codex"], f'model = "{present}"\n')
    with FakeUpstream(models=("m", "mine")) as fake:
        write_provider(shell, fake.url, CONFIGURED)
        assert shell.run("connect", "codex", "--write").code == 0
    assert find_model(shell, "codex") == present


@pytest.mark.parametrize("client", ["claude-code", "codex"])
def test_without_a_known_model_the_other_settings_are_written(shell: Shell, client: str) -> None:
    write_provider(shell, "http://127.0.0.1:9/v1")
    done = shell.run("connect", client, "--write")
    assert done.code == 0, done.err
    assert "--model" in done.err
    assert "8484" in shell.read(FILES[client])


@pytest.mark.parametrize(
    ("client", "variable", "name"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", "settings.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        ("opencode", "XDG_CONFIG_HOME", "opencode/opencode.json"),
    ],
)
def test_a_clients_own_directory_is_honoured(shell: Shell, client: str, variable: str, name: str) -> None:
    shell.run("connect", client, "--write", "--model", "m", **{variable: str(shell.home / "elsewhere")})
    assert (shell.home / "elsewhere" / name).is_file()
    assert not (shell.home / FILES[client]).exists()


def test_a_linked_settings_file_stays_a_link(shell: Shell) -> None:
    real = shell.write("dotfiles/config.toml", KEPT["codex"])
    link = shell.home / FILES["codex"]
    link.parent.mkdir()
    link.symlink_to(real)
    shell.run("connect", "codex", "--write")
    assert link.is_symlink()
    assert "dragoman" in real.read_text()


def test_other_tools_keys_are_masked_in_the_difference(shell: Shell) -> None:
    shell.write(FILES["claude-code"], '{"env":{"GITHUB_TOKEN":"fake-token-123","OPENAI_API_KEY":"sk-fake-12345678"}}')
    done = shell.run("connect", "claude-code", "--write")
    assert "fake-token-123" not in done.out
    assert "sk-fake" not in done.out
    assert "fake-token-123" in shell.read(FILES["claude-code"])


@pytest.mark.parametrize("client", ["cline", "cursor", "openai", "anthropic"])
def test_for_clients_without_a_settings_file_the_reason_is_shown(shell: Shell, client: str) -> None:
    done = shell.run("connect", client, "--write")
    assert done.code == 0
    assert "Nothing was written. " in done.err
    assert read_files(shell.home) == {}


def test_a_client_that_needs_a_model_is_not_given_a_guess(shell: Shell) -> None:
    section = '[providers.up]\nkind = "openai-compatible"\nendpoint = "http://127.0.0.1:9"\n'
    shell.write("dragoman.toml", section)
    done = shell.run("connect", "opencode", "--write")
    assert done.code == 2
    assert "--model" in done.err


def test_gemini_cli_is_configured_for_the_models_that_it_requests_by_itself(shell: Shell) -> None:
    shell.write(".gemini/settings.json", '{"modelConfigs": {"customAliases": {"classifier": {"extends": "mine"}}}}')
    assert shell.run("connect", "gemini", "--write", "--model", "m").code == 0
    aliases = msgspec.json.decode(shell.read(".gemini/settings.json"))["modelConfigs"]["customAliases"]
    assert aliases["gemini-3-flash-base"] == {"extends": "base", "modelConfig": {"model": "m"}}
    assert aliases["classifier"] == {"extends": "mine", "modelConfig": {"model": "m"}}
    assert "gemini-3-flash-preview" in shell.run("connect", "gemini").err


def test_a_model_that_the_user_chose_for_something_else_stays(shell: Shell) -> None:
    shell.write(FILES["opencode"], '{"small_model": "theirs/x"}')
    shell.run("connect", "opencode", "--write", "--model", "m")
    written = msgspec.json.decode(shell.read(FILES["opencode"]))
    assert (written["model"], written["small_model"]) == ("dragoman/m", "theirs/x")


def test_aider_gets_its_other_models_and_the_window(shell: Shell) -> None:
    shell.run("connect", "aider", "--write", "--model", "claude-sonnet-4-5")
    lines = shell.read(FILES["aider"]).splitlines()
    model = "openai/claude-sonnet-4-5"
    assert {f"model: {model}", f"weak-model: {model}", f"editor-model: {model}"} <= set(lines)
    metadata = msgspec.json.decode(shell.read(".aider.model.metadata.json"))
    assert metadata[model]["max_input_tokens"] == 200_000


def test_the_names_of_launch_are_understood_and_the_other_way_round(shell: Shell) -> None:
    assert shell.run("connect", "claude").out == shell.run("connect", "claude-code").out
    assert "Install it: npm install -g @anthropic-ai/claude-code" in shell.run("launch", "claude-code").err
    refused = shell.run("launch", "zed")
    assert (refused.code, "`dragoman connect zed`" in refused.err) == (2, True)


def test_the_only_model_of_a_server_that_was_found_is_filled_in_with_its_window(shell: Shell) -> None:
    with FakeUpstream(models=("qwen3:8b",)) as fake:
        ports = f"vllm={fake.port}"
        shown = shell.run("connect", "codex", DRAGOMAN_LOCAL_PORTS=ports)
    assert 'model = "vllm/qwen3:8b"' in shown.out


def test_the_reference_to_a_key_is_shown_in_the_difference(shell: Shell) -> None:
    assert '"apiKey": "{env:DRAGOMAN_API_KEY}"' in shell.run("connect", "opencode", "--write", "--model", "m").out


def test_json_has_lines_file_and_settings(shell: Shell) -> None:
    report = msgspec.json.decode(shell.run("connect", "codex", "--json").out, type=dict[str, object])
    assert (report["client"], report["base_url"]) == ("codex", "http://127.0.0.1:8484/v1")
    assert report["file"] == str(shell.home / FILES["codex"])
    assert tomllib.loads("\n".join(msgspec.convert(report["lines"], list[str]))) == report["settings"]


def test_settings_with_comments_keep_them_and_opencodes_second_name_is_known(shell: Shell) -> None:
    shell.write(".config/opencode/opencode.jsonc", '{\n  // mine\n  "theme": "dark",\n}\n')
    assert shell.run("connect", "opencode", "--write", "--model", "m").code == 0
    written = shell.read(".config/opencode/opencode.jsonc")
    assert written.startswith('{\n  // mine\n  "theme": "dark",\n  "provider": {')
    assert '"model": "dragoman/m"' in written
    assert not (shell.home / ".config/opencode/opencode.json").exists()


def test_the_running_gateway_is_found_on_any_port_or_named(shell: Shell) -> None:
    with shell.serve() as gateway:
        shell.write("dragoman.toml", "[server]\nport = 1\n")
        assert f"{gateway.url}/v1" in shell.run("connect", "openai").out
        assert f"{gateway.url}/v1" in shell.run("connect", "zed", "--url", f"{gateway.url}/").out
    assert "http://127.0.0.1:1/v1" in shell.run("connect", "openai").out
    refused = shell.run("connect", "openai", "--url", gateway.url)
    assert (refused.code, "No dragoman answers at" in refused.err) == (1, True)


@pytest.mark.rest
@pytest.mark.parametrize("client", ["continue", "llm", "zed", "cline"])
def test_editors_and_llm_get_address_and_model(shell: Shell, client: str) -> None:
    done = shell.run("connect", client, "--model", "m")
    assert done.code == 0
    assert "http://127.0.0.1:8484/v1" in done.out


def test_continue_gets_a_whole_file_with_the_window_of_the_model(shell: Shell) -> None:
    written = msgspec.yaml.decode(shell.run("connect", "continue", "--model", "claude-sonnet-4-5").out)
    assert (written["name"], written["version"], written["schema"]) == ("dragoman", "1.0.0", "v1")
    [model] = written["models"]
    assert (model["provider"], model["model"], model["apiBase"]) == (
        "openai",
        "claude-sonnet-4-5",
        "http://127.0.0.1:8484/v1",
    )
    assert model["apiKey"] == "${{ secrets.DRAGOMAN_API_KEY }}"
    assert model["defaultCompletionOptions"] == {"contextLength": 200_000}


def test_cline_gets_the_window_of_the_model(shell: Shell) -> None:
    assert "Context Window Size  200000" in shell.run("connect", "cline", "--model", "claude-sonnet-4-5").out

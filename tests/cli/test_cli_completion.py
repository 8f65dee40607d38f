"""Shell completion: models, providers, vendors, keys and captures, without a word to the terminal."""

from shell import Shell

CONFIG = """\
[server]
port = {port}
[debug]
capture = "all"
directory = "captures"
[providers.echo]
kind = "echo"
[providers.office]
kind = "groq"
models = ["llama"]
[[models]]
name = "fast"
to = ["echo/echo"]
[[models]]
name = "claude-*"
to = ["echo/*"]
"""


def complete(shell: Shell, *words: str, **environ: str) -> list[str]:
    """What bash would offer for the last word."""
    line = ("dragoman", *words)
    done = shell.run(
        _DRAGOMAN_COMPLETE="bash_complete", COMP_WORDS=" ".join(line), COMP_CWORD=str(len(line) - 1), **environ
    )
    assert done.err == ""
    return [entry.partition(",")[2] for entry in done.out.splitlines() if entry]


def test_models_are_completed_from_the_configuration(shell: Shell) -> None:
    shell.write("dragoman.toml", CONFIG.format(port=1))
    for command in (("chat", "-m"), ("launch", "claude", "-m"), ("connect", "codex", "-m")):
        assert complete(shell, *command, "f") == ["fast"], command
        assert complete(shell, *command, "off") == ["office/llama"], command
        assert "claude-*" not in complete(shell, *command, ""), command


def test_models_of_the_running_gateway_are_completed(shell: Shell) -> None:
    with shell.serve() as gateway:
        assert complete(shell, "chat", "-m", "echo/echo-", DRAGOMAN_API_KEY=gateway.key) == ["echo/echo-think"]


def test_providers_and_vendors_are_completed(shell: Shell) -> None:
    shell.write("dragoman.toml", CONFIG.format(port=1))
    assert complete(shell, "doctor", "off") == ["office"]
    assert complete(shell, "providers", "remove", "") == ["echo", "office"]
    assert complete(shell, "providers", "add", "openr") == ["openrouter"]


def test_keys_and_captures_are_completed(shell: Shell) -> None:
    created = shell.run("keys", "create", "laptop", "--json").json
    assert isinstance(created, dict)
    assert complete(shell, "keys", "revoke", "") == [created["id"]]
    shell.write("dragoman.toml", CONFIG.format(port=1))
    assert complete(shell, "capture", "show", "") == []
    assert shell.run("chat", "-m", "echo", "Hi").code == 0
    assert complete(shell, "capture", "show", "la") == ["last"]
    (newest,) = complete(shell, "replay", "req_")
    assert newest.startswith("req_")


def test_a_broken_configuration_completes_nothing_and_prints_nothing(shell: Shell) -> None:
    shell.write("dragoman.toml", "[")
    assert complete(shell, "chat", "-m", "") == []


def test_commands_are_completed(shell: Shell) -> None:
    assert complete(shell, "ser") == ["serve", "service"]
    assert "launch" in complete(shell, "")

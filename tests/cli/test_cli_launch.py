"""`dragoman launch` with programs that only show how they were started, and the signals between the two."""

import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from shell import Shell
from waiting import wait_until

SHOW = """#!/bin/sh
env > "$HOME/environment"
printf '%s\\n' "$@" > "$HOME/arguments"
exit 7
"""
WAIT = """#!/bin/sh
trap 'echo interrupted > "$HOME/seen"; exit 3' INT TERM
touch "$HOME/started"
while :; do sleep 0.1; done
"""

ASK = f"""#!{sys.executable}
import os, urllib.request
body = b'{{"model":"echo","max_tokens":9,"messages":[{{"role":"user","content":"Hi"}}]}}'
headers = {{"authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"], "content-type": "application/json"}}
address = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
print(urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=20).status)
"""


def add_program(shell: Shell, name: str, script: str) -> None:
    path = shell.write(f"bin/{name}", script)
    path.chmod(0o755)
    shell.environ["PATH"] = f"{shell.home / 'bin'}:{shell.environ['PATH']}"


def read_start(shell: Shell) -> tuple[dict[str, str], list[str]]:
    lines = shell.read("environment").splitlines()
    environ = dict(line.partition("=")[::2] for line in lines)
    return environ, shell.read("arguments").splitlines()


@pytest.mark.parametrize(
    "client",
    ["claude", "codex", *(pytest.param(name, marks=pytest.mark.rest) for name in ("gemini", "opencode", "aider"))],
)
def test_the_exit_code_and_the_clients_own_arguments_pass_through(shell: Shell, client: str) -> None:
    add_program(shell, client, SHOW)
    done = shell.run("launch", client, "-m", "echo", "--", "-p", "--model", "two words")
    assert done.code == 7, done.err
    environ, arguments = read_start(shell)
    assert arguments[-3:] == ["-p", "--model", "two words"]
    assert environ["HOME"] == str(shell.home)
    created = {path.name for path in shell.home.iterdir()} - {"bin", "environment", "arguments"}
    assert created == {".local"}  # the store, for the usage


@pytest.mark.rest
def test_options_that_are_not_ours_need_no_dashes(shell: Shell) -> None:
    add_program(shell, "claude", SHOW)
    assert shell.run("launch", "claude", "--model", "echo", "-p", "Hi", "--verbose").code == 7
    environ, arguments = read_start(shell)
    assert arguments[-3:] == ["-p", "Hi", "--verbose"]
    assert environ["ANTHROPIC_MODEL"] == "echo"


def test_claude_code_gets_address_key_model_and_window(shell: Shell) -> None:
    add_program(shell, "claude", SHOW)
    shell.write(
        "dragoman.toml", '[providers.echo]\nkind = "echo"\n[[models]]\nname = "big"\nto = ["echo/claude-opus-5-5"]\n'
    )
    shell.run("launch", "claude", ANTHROPIC_API_KEY="sk-fake-vendor")
    environ, arguments = read_start(shell)
    assert environ["ANTHROPIC_BASE_URL"].startswith("http://127.0.0.1:")
    assert len(environ["ANTHROPIC_AUTH_TOKEN"]) >= 32
    assert "ANTHROPIC_API_KEY" not in environ
    assert (environ["ANTHROPIC_MODEL"], environ["ANTHROPIC_DEFAULT_HAIKU_MODEL"]) == ("big", "big")
    assert environ["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == environ["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "1000000"
    settings = msgspec.json.decode(arguments[1], type=dict[str, dict[str, str]])
    assert settings["env"]["ANTHROPIC_BASE_URL"] == environ["ANTHROPIC_BASE_URL"]
    assert environ["ANTHROPIC_AUTH_TOKEN"] not in " ".join(arguments), "other users can see arguments"


@pytest.mark.rest
def test_with_a_key_the_running_gateway_is_used(shell: Shell) -> None:
    add_program(shell, "opencode", SHOW)
    with shell.serve() as gateway:
        done = shell.run("launch", "opencode", DRAGOMAN_API_KEY=gateway.key)
        assert (done.code, f"opencode uses echo through {gateway.url}." in done.err) == (7, True)
        without = shell.run("launch", "opencode")
        assert f"A gateway runs at {gateway.url}, but $DRAGOMAN_API_KEY is not set" in without.err
        shell.run("launch", "opencode", "--url", f"{gateway.url}/v1", "--key", gateway.key)
    environ, _ = read_start(shell)
    config = msgspec.json.decode(environ["OPENCODE_CONFIG_CONTENT"], type=dict[str, object])
    assert config["model"] == "dragoman/echo"
    assert gateway.url in environ["OPENCODE_CONFIG_CONTENT"]
    assert gateway.key not in environ["OPENCODE_CONFIG_CONTENT"]


def test_a_url_needs_a_key(shell: Shell) -> None:
    add_program(shell, "claude", SHOW)
    with shell.serve() as gateway:
        done = shell.run("launch", "claude", "--url", gateway.url)
    assert (done.code, "A key for" in done.err) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_client_first_and_its_code_is_ours(shell: Shell, number: signal.Signals) -> None:
    add_program(shell, "claude", WAIT)
    process = shell.start("launch", "claude", "-m", "echo")
    wait_until(lambda: (shell.home / "started").exists())
    if number is signal.SIGINT:  # a terminal sends it to the whole group
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert Path(shell.home / "seen").read_text() == "interrupted\n"


@pytest.mark.rest
def test_usage_of_the_gateway_that_launch_starts_is_stored(shell: Shell) -> None:
    add_program(shell, "claude", ASK)
    assert shell.run("launch", "claude", "-m", "echo").out.strip() == "200"
    usage = shell.run("usage", "--json").json
    assert isinstance(usage, dict)
    assert usage["total"]["requests"] == 1


def test_a_store_that_cannot_be_opened_does_not_keep_a_client_from_working(shell: Shell) -> None:
    add_program(shell, "claude", ASK)
    shell.write("file", "")
    shell.write("dragoman.toml", '[store]\nurl = "sqlite:///file/below"\n[providers.echo]\nkind = "echo"\n')
    done = shell.run("launch", "claude", "-m", "echo")
    assert (done.code, done.out.strip()) == (0, "200")
    assert "Usage is not stored: " in done.err

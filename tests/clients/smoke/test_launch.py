"""`dragoman launch` starts real clients with the gateway behind them, and writes nothing into their settings."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from clients.claude_code import QUIET
from clients.install import native
from clients.searching import ANSWER, QUERY, searxng, settings_for
from dragoman.operate.clients.launching import GEMINI_SETTINGS, find_shared_directory
from fakes.agent import Agent, Use
from fakes.agents import chat
from fakes.upstream import FakeUpstream
from gateway import provider_section

Client = Callable[[str], Path]
BINARIES = {
    "claude": ("claude-code", "@anthropic-ai/claude-code-*/claude"),
    "codex": ("codex", "@openai/codex-*/vendor/*/bin/codex"),
}
FOREIGN = "sk-ant-fake-vendor-key-of-the-user"


class Place:
    """A home directory of its own, with one client in $PATH."""

    def __init__(self, home: Path, program: str, binary: Path) -> None:
        (home / "bin").mkdir()
        (home / "bin" / program).symlink_to(binary)
        self.home = home
        path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**QUIET, "HOME": str(home), "PATH": path, "DRAGOMAN_LOCAL_PORTS": "", "NO_COLOR": "1"}

    def start(self, *words: str, **environ: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "dragoman", *words],
            cwd=self.home,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, **environ: str) -> tuple[int, str, str]:
        process = self.start(*words, **environ)
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, out, err


@pytest.fixture
def place(tmp_path: Path, client: Client) -> Callable[[str], Place]:
    def make(program: str) -> Place:
        name, pattern = BINARIES[program]
        return Place(tmp_path, program, native(client(name), pattern))

    return make


def test_claude_code_answers_without_any_account_and_nothing_is_written(place: Callable[[str], Place]) -> None:
    here = place("claude")
    settings = here.home / ".claude" / "settings.json"
    settings.parent.mkdir()
    # An address of the user's own must not win over ours, and a vendor's key must not be sent to us.
    before = '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}}'
    settings.write_text(before)
    here.home.joinpath("dragoman.toml").write_text('[providers.echo]\nkind = "echo"\n')
    words = ("launch", "claude", "-m", "echo", "-p", "Hello from launch")
    code, out, err = here.run(*words, ANTHROPIC_API_KEY=FOREIGN)
    assert code == 0, err
    assert out.rstrip().endswith("Hello from launch")
    assert "No gateway is running: one is started" in err
    assert settings.read_text() == before
    assert FOREIGN not in out + err
    listed = here.home / ".claude" / "cache" / "gateway-models.json"  # what its picker shows
    assert '"claude-code/echo/echo"' in listed.read_text()


def test_codex_answers_through_the_running_gateway_wherever_it_listens(place: Callable[[str], Place]) -> None:
    here = place("codex")
    key = "fake-client-key-for-launch"
    served = here.start("serve", "--port", "0", DRAGOMAN_API_KEY=key)
    try:
        noted = here.home / ".local/share/dragoman/running"
        until = time.monotonic() + 60
        while not list(noted.glob("*.json")):
            assert time.monotonic() < until
            time.sleep(0.05)
        words = ("exec", "--skip-git-repo-check", "--disable", "plugins", "--json", "Hello from launch")
        code, out, err = here.run("launch", "codex", "-m", "echo", "--", *words, DRAGOMAN_API_KEY=key)
        assert code == 0, err
        assert "codex uses echo through http://127.0.0.1:" in err
        texts = [msgspec.json.decode(line).get("item", {}).get("text") for line in out.splitlines()]
        assert "Hello from launch" in texts
        assert not (here.home / ".codex" / "config.toml").exists()
        code, _, err = here.run("launch", "codex", "-m", "echo", DRAGOMAN_API_KEY="fake-other-key-of-someone")
        assert (code, "rejects the key" in err) == (1, True)
    finally:
        served.send_signal(signal.SIGTERM)
        served.communicate(timeout=60)
    assert list(noted.glob("*.json")) == []


@pytest.mark.rest
def test_what_is_missing_is_named(place: Callable[[str], Place]) -> None:
    here = place("claude")
    code, _, err = here.run("launch", "codex")
    assert (code, "There is no `codex` in $PATH. Install it: npm install -g @openai/codex" in err) == (1, True)
    code, _, err = here.run("launch", "claude", "--url", "http://127.0.0.1:9")
    assert (code, "No dragoman answers at http://127.0.0.1:9." in err) == (1, True)
    here.home.joinpath("dragoman.toml").write_text(
        '[providers.none]\nkind = "openai-compatible"\nendpoint = "http://127.0.0.1:9"\n'
    )
    code, _, err = here.run("launch", "claude", "-p", "Hi")
    assert (code, "No model is known" in err) == (1, True)
    assert here.run("launch", "nobody")[0] == 2


@pytest.mark.rest
def test_a_subagent_of_claude_code_that_asks_for_sonnet_gets_the_model_of_the_launch(
    place: Callable[[str], Place],
) -> None:
    here = place("claude")
    task = {"description": "Say hello", "prompt": "Say hello.", "subagent_type": "Explore", "run_in_background": False}
    agent = Agent(chat, (Use("Agent", {**task, "model": "sonnet"}),))
    with FakeUpstream(choose=agent, models=("m",)) as fake:
        toml = f"{provider_section('chat', fake.url)}context_window = 131072\n"
        here.home.joinpath("dragoman.toml").write_text(toml)
        words = ("-p", "Delegate it.", "--allowedTools", "Agent")
        code, out, err = here.run("launch", "claude", "-m", "up/m", "--", *words)
    assert code == 0, out + err
    assert out.rstrip().endswith("A short answer."), out + err
    assert [request.model for request in agent.requests] == ["m", "m", "m"], "the task, the subagent, the end"
    assert "assumes a context window" not in err


@pytest.fixture
def gemini_place(tmp_path: Path, client: Client, node: Path) -> Place:
    entry = client("gemini-cli") / "node_modules" / "@google" / "gemini-cli" / "bundle" / "gemini.js"
    script = tmp_path / "gemini"
    script.write_text(f'#!/bin/sh\nexec "{node}" "{entry}" "$@"\n')
    script.chmod(0o755)
    return Place(tmp_path, "gemini", script)


@pytest.mark.rest
def test_the_web_search_of_gemini_cli_uses_the_model_of_the_launch(gemini_place: Place) -> None:
    here = gemini_place
    settings = here.home / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
    agent = Agent(chat, (Use("google_web_search", {"query": QUERY}),), search=Use("web_search", {"query": QUERY}))
    agent.answer = ANSWER
    with searxng() as service, FakeUpstream(choose=agent, models=("m",)) as fake:
        toml = settings_for(service) + provider_section("chat", fake.url)
        here.home.joinpath("dragoman.toml").write_text(toml)
        words = ("--yolo", "--skip-trust", "-p", "Search the web.")
        code, out, err = here.run("launch", "gemini", "-m", "up/m", "--", *words)
    assert code == 0, err
    assert "They eat bamboo" in out, out + err
    assert {request.model for request in agent.requests} == {"m"}
    assert len(service.requests) == 1


@pytest.mark.rest
def test_gemini_cli_is_launched_with_a_key_even_if_the_user_signs_in_with_google(gemini_place: Place) -> None:
    here = gemini_place
    settings = here.home / ".gemini" / "settings.json"
    settings.parent.mkdir()
    before = '{"security": {"auth": {"selectedType": "oauth-personal"}}, "privacy": {"usageStatisticsEnabled": false}}'
    settings.write_text(before)
    code, out, err = here.run("launch", "gemini", "-m", "echo", "--", "--skip-trust", "-p", "Hello from launch")
    assert settings.read_text() == before
    if find_shared_directory(GEMINI_SETTINGS) is not None:  # then Gemini CLI ignores what is not in the user's own file
        assert "dragoman connect gemini --write" in err
        return
    assert code == 0, err
    assert out.rstrip().endswith("Hello from launch")

"""How each real client is driven through a session: its settings, and the command for one turn of the user."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import msgspec

from clients import claude_code, codex, gemini_cli
from clients.install import PINS, ensure_installed, native, node
from clients.sessions.script import FILE_LINES, TURNS, ReadTool

KEY = "sk-scripted"  # the scripted upstream takes any
PATIENCE_S = 240.0
NO_PROMPTS: Iterator[str] = iter(())


@dataclass(frozen=True)
class Place:
    """Where a client runs: its home, the project that it works on, and the server that it asks."""

    home: Path
    project: Path
    url: str  # without /v1

    def run(self, command: Sequence[str | Path], env: Mapping[str, str], prompts: Iterator[str] = NO_PROMPTS) -> None:
        """Run a client to its end; one that stays for a whole session gets each prompt when it has answered the last.

        Raises RuntimeError if the client failed or took too long.
        """
        basic = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "NO_COLOR": "1", "CI": "1"}
        client = subprocess.Popen(
            list(map(str, command)),
            cwd=self.project,
            env={**basic, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert client.stdin is not None
        assert client.stdout is not None
        timer = Timer(PATIENCE_S, client.kill)
        timer.start()
        try:
            for prompt in prompts:
                client.stdin.write(prompt)
                client.stdin.flush()
                next((line for line in client.stdout if '"type":"result"' in line), None)
            output, _ = client.communicate()
        finally:
            timer.cancel()
            client.kill()
        if client.returncode:
            raise RuntimeError(f"{command[0]} ended with {client.returncode}:\n{output[-4000:]}")


Converse = Callable[[Place, str, Iterator[str]], None]  # place, model, prompts of the user
Ask = Callable[[Place, str, str, bool], None]  # place, model, prompt, whether it is the first of the session


@dataclass(frozen=True)
class Driver:
    """A session to record."""

    name: str
    client: str  # a table of versions.toml
    protocol: str
    model: str
    tool: ReadTool | None  # None: it is given what the model needs by the client itself
    converse: Converse
    turns: tuple[tuple[int, ...], ...] = TURNS
    file_lines: int = FILE_LINES
    maps_repository: bool = False  # its prompts have a map of the functions that the user names

    @property
    def version(self) -> str:
        pins = PINS["npm"].get(self.client) or PINS["python"][self.client]
        return next(iter(pins.values()))


def ask_each(ask: Ask) -> Converse:
    """Return what runs the client once for each prompt."""

    def converse(place: Place, model: str, prompts: Iterator[str]) -> None:
        for turn, prompt in enumerate(prompts):
            ask(place, model, prompt, turn == 0)

    return converse


def converse_with_claude_code(place: Place, model: str, prompts: Iterator[str]) -> None:
    """Stay in one process: a session that is resumed by another one sends its thinking only now and then."""
    binary = native(ensure_installed("claude-code"), "@anthropic-ai/claude-code-*/claude")
    streams = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
    env = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "CLAUDE_CONFIG_DIR": str(place.home / ".claude"),
    }
    lines = (
        msgspec.json.encode({"type": "user", "message": {"role": "user", "content": prompt}}).decode() + "\n"
        for prompt in prompts
    )
    command = (binary, "-p", "--model", model, *streams, "--allowedTools", "Read")
    place.run(command, {**claude_code.QUIET, **env}, lines)


def ask_claude_code_something_else(place: Place, model: str, prompts: Iterator[str]) -> None:
    """Begin another session of Claude Code, with another first prompt: its billing line depends on that."""
    converse_with_claude_code(place, model, (f"Another question. {prompt}" for prompt in prompts))


def ask_codex(place: Place, model: str, prompt: str, is_first: bool) -> None:
    home = place.home / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(codex.CUSTOM.format(url=place.url))
    binary = native(ensure_installed("codex"), "@openai/codex-*/vendor/*/bin/codex")
    mode = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--disable", "plugins")
    session = codex.NEW if is_first else codex.LAST
    env = {"CODEX_HOME": str(home), "GATEWAY_KEY": KEY}
    place.run((binary, *session, *mode, "-m", model, prompt), env)


def ask_gemini_cli(place: Place, model: str, prompt: str, is_first: bool) -> None:
    home = place.home / ".gemini"
    home.mkdir(exist_ok=True)
    (home / "settings.json").write_bytes(msgspec.json.encode(gemini_cli.SETTINGS))
    entry = ensure_installed("gemini-cli") / "node_modules" / "@google" / "gemini-cli" / "bundle" / "gemini.js"
    mode = ("--yolo", "--skip-trust", "-o", "stream-json", *(() if is_first else ("--resume", "latest")))
    env = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": place.url, "GEMINI_MODEL": model}
    place.run((node(), entry, *mode, "-p", prompt), env)


def ask_opencode(package: str) -> Ask:
    """Return what asks through this package of the AI SDK."""

    def ask(place: Place, model: str, prompt: str, is_first: bool) -> None:
        folder = place.home / ".config" / "opencode"
        folder.mkdir(parents=True, exist_ok=True)
        options = {"baseURL": f"{place.url}/v1", "apiKey": KEY}
        server = {"npm": f"@ai-sdk/{package}", "options": options, "models": {model: {"name": model}}}
        config = {"provider": {"server": server}, "autoupdate": False}
        (folder / "opencode.json").write_bytes(msgspec.json.encode(config))
        binary = native(ensure_installed("opencode"), "opencode-*/bin/opencode")
        session = () if is_first else ("--continue",)
        mode = ("run", "--format", "json", "--auto", "-m", f"server/{model}", *session)
        quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        place.run((binary, *mode, prompt), quiet)

    return ask


def ask_aider(place: Place, model: str, prompt: str, is_first: bool) -> None:
    """Ask with the map of the repository and all earlier turns, as in one session of its terminal."""
    python = ensure_installed("aider") / "bin" / "python"
    quiet = ("--yes-always", "--analytics-disable", "--no-check-update", "--no-pretty", "--no-gitignore")
    context = ("--map-tokens", "4096", "--max-chat-history-tokens", "100000")
    session = () if is_first else ("--restore-chat-history",)
    env = {"OPENAI_API_BASE": f"{place.url}/v1", "OPENAI_API_KEY": KEY}
    place.run((python, "-m", "aider", *quiet, *context, *session, "--model", model, "--message", prompt), env)


def write_json(**arguments: str) -> str:
    return msgspec.json.encode(arguments).decode()


READ = ReadTool("Read", lambda path: write_json(file_path=path))
EXEC_COMMAND = ReadTool("exec_command", lambda path: write_json(cmd=f"cat {path}"))
EXEC = ReadTool(
    "exec",
    lambda paths: (
        f"const files = {msgspec.json.encode(paths.split()).decode()};\n"
        "const read = await Promise.all(files.map((file) => tools.exec_command({cmd: `cat ${file}`})));\n"
        "read.forEach((one) => text(one));\n"
    ),
    is_freeform=True,
)
READ_FILE = ReadTool("read_file", lambda path: write_json(file_path=path))
OPENCODE_READ = ReadTool("read", lambda path: write_json(filePath=path))
EIGHT = TURNS[:8]
FIVE_ANSWERS: tuple[tuple[int, ...], ...] = ((),) * 5
MASKED_LINES = 92  # Gemini CLI masks old results once there are 80,000 tokens of them
DRIVERS = {
    driver.name: driver
    for driver in (
        Driver("claude-code", "claude-code", "messages", "claude-opus-5-5", READ, converse_with_claude_code),
        Driver(
            "claude-code-second",
            "claude-code",
            "messages",
            "claude-opus-5-5",
            READ,
            ask_claude_code_something_else,
            TURNS[:1],
        ),
        Driver(
            "aider", "aider", "chat", "openai/gpt-4o", None, ask_each(ask_aider), FIVE_ANSWERS, maps_repository=True
        ),
        Driver("codex-gpt-5.5", "codex", "responses", "gpt-5.5", EXEC_COMMAND, ask_each(ask_codex)),
        Driver("codex-gpt-5.6-sol", "codex", "responses", "gpt-5.6-sol", EXEC, ask_each(ask_codex)),
        Driver(
            "gemini-cli",
            "gemini-cli",
            "gemini",
            "gemini-2.5-pro",
            READ_FILE,
            ask_each(ask_gemini_cli),
            TURNS,
            MASKED_LINES,
        ),
        *(
            Driver(
                f"opencode-{package}",
                "opencode",
                protocol,
                model,
                OPENCODE_READ,
                ask_each(ask_opencode(package)),
                EIGHT,
            )
            for package, protocol, model in (
                ("anthropic", "messages", "claude-opus-5-5"),
                ("openai", "responses", "gpt-5.5"),
                ("openai-compatible", "chat", "some-model"),
            )
        ),
    )
}

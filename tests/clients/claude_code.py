"""Claude Code, run headless against a gateway."""

from pathlib import Path

import msgspec

from clients.install import native
from clients.rig import Ran, Rig
from gateway import KEY

QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",
}


def settings(rig: Rig) -> dict[str, str]:
    return {
        **QUIET,
        "ANTHROPIC_BASE_URL": rig.url,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "CLAUDE_CONFIG_DIR": str(rig.home / "claude"),
    }


def ask(rig: Rig, directory: Path, prompt: str, model: str = "claude-opus-5-5", **extra: str) -> Ran:
    binary = native(directory, "@anthropic-ai/claude-code-*/claude")
    mode = ("--output-format", "stream-json", "--verbose", "--permission-mode", "acceptEdits")
    allowed = ("--allowedTools", "Bash,Read,Write,WebSearch")
    return rig.run(binary, "-p", prompt, "--model", model, *mode, *allowed, env={**settings(rig), **extra})


def result(ran: Ran) -> dict[str, object]:
    """The last line that Claude Code writes: how it ended, and with what text."""
    lines = [msgspec.json.decode(line, type=dict) for line in ran.out.splitlines() if line.startswith("{")]
    results = [line for line in lines if line.get("type") == "result"]
    assert results, ran
    return results[-1]


def search(rig: Rig, directory: Path) -> Ran:
    """Run Claude Code with all its tools declared at once, WebSearch among them."""
    ran = ask(rig, directory, "Search the web.", ENABLE_TOOL_SEARCH="false")
    assert ran.code == 0, ran
    assert result(ran)["subtype"] == "success", ran
    return ran


def tool_result(ran: Ran) -> dict[str, object]:
    """Return the last result of a tool as Claude Code keeps it for itself."""
    lines = [msgspec.json.decode(line, type=dict) for line in ran.out.splitlines() if line.startswith("{")]
    results = [line["tool_use_result"] for line in lines if isinstance(line.get("tool_use_result"), dict)]
    assert results, ran
    found: dict[str, object] = results[-1]
    return found

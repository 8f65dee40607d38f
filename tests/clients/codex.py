"""Codex, run headless against a gateway."""

from pathlib import Path

import msgspec

from clients.install import native
from clients.rig import PATIENCE_S, Ran, Rig
from gateway import KEY

CUSTOM = """model_provider = "gateway"
[model_providers.gateway]
name = "gateway"
base_url = "{url}/v1"
env_key = "GATEWAY_KEY"
wire_api = "responses"
"""
SOCKET = CUSTOM + "supports_websockets = true\n"
# The provider that Codex is born with; it tries a WebSocket first.
BUILT_IN = 'openai_base_url = "{url}/v1"\n'
NEW, LAST = ("exec",), ("exec", "resume", "--last")  # the session that a prompt belongs to


def ask(
    rig: Rig,
    directory: Path,
    prompt: str,
    model: str = "gpt-5.5",
    config: str = CUSTOM,
    patience_s: float = PATIENCE_S,
    key: str = KEY,
    session: tuple[str, ...] = NEW,
) -> Ran:
    home = rig.home / "codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(config.format(url=rig.url))
    (home / "auth.json").write_bytes(msgspec.json.encode({"OPENAI_API_KEY": key}))
    mode = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--disable", "plugins")
    binary = native(directory, "@openai/codex-*/vendor/*/bin/codex")
    env = {"CODEX_HOME": str(home), "GATEWAY_KEY": key}
    return rig.run(binary, *session, *mode, "-m", model, prompt, patience_s=patience_s, env=env)


def search(rig: Rig, directory: Path) -> Ran:
    """Run Codex with its web search enabled."""
    ran = ask(rig, directory, "Search the web.", config='web_search = "live"\n' + CUSTOM)
    assert ran.code == 0, ran
    assert is_complete(ran), ran
    return ran


def list_messages(ran: Ran) -> list[str]:
    """Return the messages that Codex has shown its user."""
    return [str(item["text"]) for item in items(ran) if item["type"] == "agent_message"]


def items(ran: Ran) -> list[dict[str, object]]:
    events = [msgspec.json.decode(line, type=dict) for line in ran.out.splitlines() if line.startswith("{")]
    return [event["item"] for event in events if event.get("type") == "item.completed"]


def is_complete(ran: Ran) -> bool:
    return '"turn.completed"' in ran.out

"""Gemini CLI, run headless against a gateway."""

from pathlib import Path

import msgspec

from clients.rig import PATIENCE_S, Ran, Rig
from gateway import KEY

SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
}


def ask(
    rig: Rig, node: Path, directory: Path, prompt: str, model: str = "gemini-2.5-pro", patience_s: float = PATIENCE_S
) -> Ran:
    home = rig.home / ".gemini"
    home.mkdir(exist_ok=True)
    (home / "settings.json").write_bytes(msgspec.json.encode(SETTINGS))
    env = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": rig.url, "GEMINI_MODEL": model}
    return run(rig, node, directory, prompt, env, patience_s)


def run(rig: Rig, node: Path, directory: Path, prompt: str, env: dict[str, str], patience_s: float = PATIENCE_S) -> Ran:
    """Run it with the settings that are in its home."""
    entry = directory / "node_modules" / "@google" / "gemini-cli" / "bundle" / "gemini.js"
    mode = ("--yolo", "--skip-trust", "-o", "stream-json", "-p", prompt)
    return rig.run(node, entry, *mode, patience_s=patience_s, env=env)


def events(ran: Ran) -> list[dict[str, object]]:
    return [msgspec.json.decode(line, type=dict) for line in ran.out.splitlines() if line.startswith("{")]


def text_of(ran: Ran) -> str:
    """Return what the model has said to the user, joined."""
    found = [event for event in events(ran) if event.get("type") == "message" and event.get("role") == "assistant"]
    return "".join(str(event["content"]) for event in found)


def result(ran: Ran) -> dict[str, object]:
    """Return how it ended."""
    results = [event for event in events(ran) if event.get("type") == "result"]
    assert results, ran
    return results[-1]

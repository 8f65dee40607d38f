"""Every SDK and framework uses a tool through the gateway, on every upstream."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clients import claude_code
from clients.driven import DRIVERS, NOTE, check_notes, outcomes
from clients.proof import Proves
from clients.rig import ALL_UPSTREAMS, Rig
from clients.smoke.test_sdks import SDKS, Sdk, run_sdk, whole_and_streamed
from fakes.agent import Use

Rigging = Callable[..., Rig]
Client = Callable[[str], Path]
EACH = ("chat", "responses", "messages")
OTHERS = {
    "anthropic-python 1": Sdk("anthropic_python.py", "", SDKS["anthropic-python"].ways, "anthropic-1"),
    "openai-agents": Sdk("openai_agents.py", "", whole_and_streamed("chat", "responses"), "openai-agents"),
    "langchain": Sdk("langchain_agent.py", "", whole_and_streamed(*EACH), "langchain"),
    "Vercel AI SDK": Sdk(
        "vercel_ai.mjs", "", whole_and_streamed("responses", "chat", "messages", "compatible"), "node-sdks"
    ),
}
# Streamed, google-genai sends every chunk back as a turn of its own, which the strict fake refuses from anyone.
ON_GEMINI = SDKS | {"google-genai": replace(SDKS["google-genai"], ways=("gemini",))}
# On the other upstreams, the smoke set runs these with faults too.
CASES = [(name, sdk, upstream) for name, sdk in OTHERS.items() for upstream in ALL_UPSTREAMS]
CASES += [(name, sdk, "gemini") for name, sdk in ON_GEMINI.items()]


@pytest.mark.parametrize(("name", "sdk", "upstream"), CASES, ids=[f"{name}-{upstream}" for name, _, upstream in CASES])
def test_an_sdk_uses_a_tool(
    name: str, sdk: Sdk, upstream: str, rig: Rigging, client: Client, node: Path, proves: Proves
) -> None:
    here = rig(upstream, NOTE)
    check_notes(here, run_sdk(here, sdk, sdk.ways, client, node), *sdk.ways)
    proves(name, upstream, "tools", *{"streamed" if way.endswith("-stream") else "whole" for way in sdk.ways})


@pytest.mark.parametrize("upstream", ALL_UPSTREAMS)
def test_the_claude_agent_sdk_writes_a_file(
    upstream: str, rig: Rigging, client: Client, tmp_path: Path, proves: Proves
) -> None:
    file = tmp_path / "work" / "written.txt"
    here = rig(upstream, Use("Write", {"file_path": str(file), "content": "Grüße 👋\n"}))
    python = client("claude-agent") / "bin" / "python"
    ran = here.run(python, DRIVERS / "claude_agent.py", "Write a file.", env=claude_code.settings(here))
    assert ran.code == 0, ran
    outcome = outcomes(ran)["agent"]
    assert outcome.error == [], ran
    assert outcome.text.startswith("Finished. The last tool said: File created successfully"), ran
    assert file.read_text() == "Grüße 👋\n"
    assert here.agent.complaints == []
    proves("claude-agent-sdk", upstream, "tools", "streamed")

"""The Python clients beyond the smoke set use tools through the gateway."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients import claude_code
from clients.driven import DRIVERS, NOTE, check_notes, outcomes
from clients.proof import Proves
from clients.rig import ALL_UPSTREAMS, Rig
from fakes.agent import Use

Rigging = Callable[..., Rig]
Client = Callable[[str], Path]
upstreams = pytest.mark.parametrize("upstream", ALL_UPSTREAMS)


@upstreams
def test_the_first_line_of_anthropic_python_uses_a_tool(
    upstream: str, rig: Rigging, client: Client, proves: Proves
) -> None:
    here = rig(upstream, NOTE)
    ran = here.run(client("anthropic-1") / "bin" / "python", DRIVERS / "anthropic_python.py")
    check_notes(here, ran, "messages", "messages-stream", "runner", "runner-stream")
    proves("anthropic-python 1", upstream, "tools", "whole", "streamed")


@upstreams
def test_openai_agents_uses_a_tool(upstream: str, rig: Rigging, client: Client, proves: Proves) -> None:
    here = rig(upstream, NOTE)
    ran = here.run(client("openai-agents") / "bin" / "python", DRIVERS / "openai_agents.py")
    check_notes(here, ran, "chat", "chat-stream", "responses", "responses-stream")
    proves("openai-agents", upstream, "tools", "whole", "streamed")


@upstreams
def test_langchain_uses_a_tool(upstream: str, rig: Rigging, client: Client, proves: Proves) -> None:
    here = rig(upstream, NOTE)
    ran = here.run(client("langchain") / "bin" / "python", DRIVERS / "langchain_agent.py")
    modes = ("chat", "chat-stream", "responses", "responses-stream", "messages", "messages-stream")
    check_notes(here, ran, *modes)
    proves("langchain", upstream, "tools", "whole", "streamed")


@upstreams
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

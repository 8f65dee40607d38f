"""The vendors' own Python SDKs and a framework on top of them use tools through the gateway."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clients.driven import DRIVERS, NOTE, check_notes
from clients.rig import UPSTREAMS, Rig


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_openai_python_uses_a_tool(upstream: str, rig: Callable[..., Rig]) -> None:
    here = rig(upstream, NOTE)
    ran = here.run(sys.executable, DRIVERS / "openai_python.py")
    check_notes(here, ran, "chat", "chat-stream", "responses", "responses-stream")


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_anthropic_python_uses_a_tool(upstream: str, rig: Callable[..., Rig]) -> None:
    here = rig(upstream, NOTE)
    ran = here.run(sys.executable, DRIVERS / "anthropic_python.py")
    check_notes(here, ran, "messages", "messages-stream", "runner", "runner-stream")


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_pydantic_ai_uses_a_tool(upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path]) -> None:
    here = rig(upstream, NOTE)
    ran = here.run(client("pydantic-ai") / "bin" / "python", DRIVERS / "pydantic_ai_agent.py")
    check_notes(here, ran, "chat", "chat-stream", "responses", "responses-stream", "messages", "messages-stream")

"""Claude Code and Codex themselves, answered by a real model through the gateway, whose replies are not predictable."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clients import claude_code, codex, install
from clients.rig import Rig
from fakes.agent import Agent
from fakes.agents import chat
from fakes.doorway import Doorway
from fakes.upstream import FakeUpstream
from gateway import Running

Show = Callable[[object], None]

PATIENCE_S = 300.0
BRIEF = "You are a helpful assistant. Answer in one short sentence."
SUN = "What is the sun?"


@pytest.fixture
def rig(gateway: Running, tmp_path: Path) -> Iterator[Rig]:
    """Before the real model; the scripted upstream that client tests have stays unused."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    with Doorway(gateway.port) as door:
        yield Rig(gateway, FakeUpstream(), Agent(chat, ()), home, work, door)


def test_claude_code_is_answered_by_a_real_model(rig: Rig, report: Show, show: Show) -> None:
    binary = install.native(install.ensure_installed("claude-code", report), "@anthropic-ai/claude-code-*/claude")
    # The whole of its own instructions would not fit into so small a model's context.
    mode = ("--output-format", "stream-json", "--verbose", "--system-prompt", BRIEF, "--tools", "")
    words = (binary, "-p", SUN, "--model", "smollm2", *mode)
    ran = rig.run(*words, patience_s=PATIENCE_S, env=claude_code.settings(rig))
    ended = claude_code.result(ran)
    show(ended["result"])
    assert ran.code == 0, ran
    assert ended["subtype"] == "success", ran
    assert len(str(ended["result"]).split()) > 2, ran
    assert ("POST", "/v1/messages?beta=true") in rig.door.requests


def test_codex_is_answered_by_a_real_model(rig: Rig, report: Show, show: Show) -> None:
    brief = rig.home / "brief.md"
    brief.write_text(BRIEF)
    config = f'model_instructions_file = "{brief}"\n' + codex.CUSTOM
    directory = install.ensure_installed("codex", report)
    ran = codex.ask(rig, directory, SUN, model="smollm2", config=config, patience_s=PATIENCE_S)
    show(codex.list_messages(ran))
    assert ran.code == 0, ran
    assert codex.is_complete(ran), ran
    assert len(codex.list_messages(ran)[-1].split()) > 2, ran
    assert ("POST", "/v1/responses") in rig.door.requests

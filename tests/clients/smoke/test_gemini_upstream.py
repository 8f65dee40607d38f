"""Claude Code and Codex work on a Gemini upstream, with tools over several turns."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients import claude_code, codex
from clients.proof import Proves
from clients.rig import Rig
from fakes.agent import Use
from fakes.agents.gemini import PLACEHOLDER
from wire_json import JsonObject

pytestmark = pytest.mark.rest
BASH: JsonObject = {"command": "echo hello-from-tool > out.txt && cat out.txt", "description": "write a file"}
EXEC = Use("exec_command", {"cmd": "echo hello-from-tool > out.txt && cat out.txt"})
PATCH = "*** Begin Patch\n*** Add File: patched.txt\n+Grüße 👋 from apply_patch\n*** End Patch\n"


def signatures(rig: Rig) -> list[str]:
    """Return those of the calls in the last request."""
    contents: list[JsonObject] = rig.upstream.calls[-1].json["contents"]
    parts = [part for content in contents for part in content["parts"]]
    return [part["thoughtSignature"] for part in parts if "functionCall" in part]


@pytest.mark.parametrize("model", ["gemini-3.5-flash", "gemini-2.5-pro"])
def test_claude_code_runs_a_command_writes_a_file_and_reads_it(
    model: str, rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    file = tmp_path / "work" / "written.txt"
    write = Use("Write", {"file_path": str(file), "content": "Grüße 👋\n"})
    here = rig("gemini", Use("Bash", BASH), write, Use("Read", {"file_path": str(file)}))
    ran = claude_code.ask(here, client("claude-code"), "Write two files.", model=model)
    assert ran.code == 0, ran
    ended = claude_code.result(ran)
    assert ended["subtype"] == "success", ran
    assert "Grüße 👋" in str(ended["result"]), ran
    assert file.read_text() == "Grüße 👋\n"
    assert here.agent.complaints == []
    found = signatures(here)
    assert len(found) == 3
    assert PLACEHOLDER not in found
    proves("Claude Code", "gemini", "tools", "streamed")


def test_codex_runs_a_command_and_applies_a_freeform_patch(
    rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    here = rig("gemini", EXEC, Use("apply_patch", PATCH))
    ran = codex.ask(here, client("codex"), "Write two files.")
    assert ran.code == 0, ran
    assert codex.is_complete(ran), ran
    assert "Success. Updated the following files" in codex.list_messages(ran)[-1], ran
    assert (tmp_path / "work" / "patched.txt").read_text() == "Grüße 👋 from apply_patch\n"
    assert here.agent.complaints == []
    found = signatures(here)
    assert len(found) == 2
    assert PLACEHOLDER not in found
    proves("Codex", "gemini", "tools", "streamed", "freeform")

"""Claude Code works through the gateway on upstreams of every protocol."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.claude_code import ask, result
from clients.proof import Proves
from clients.rig import UPSTREAMS, Rig, on_every_upstream
from fakes.agent import Use


@on_every_upstream("chat")
def test_claude_code_runs_a_command_and_writes_a_file(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    file = tmp_path / "work" / "written.txt"
    run = Use("Bash", {"command": "echo hello-from-tool > out.txt && cat out.txt", "description": "write a file"})
    write = Use("Write", {"file_path": str(file), "content": "Grüße 👋\n"})
    here = rig(upstream, run, write)
    ran = ask(here, client("claude-code"), "Write two files.")
    ended = result(ran)
    assert ran.code == 0, ran
    assert ended["subtype"] == "success", ran
    assert str(ended["result"]).startswith("Finished. The last tool said: File created successfully"), ran
    assert (tmp_path / "work" / "out.txt").read_text() == "hello-from-tool\n"
    assert file.read_text() == "Grüße 👋\n"
    assert here.agent.complaints == []
    assert here.agent.requests[-1].results[0] == "hello-from-tool"
    proves("Claude Code", upstream, "tools", "streamed")


@pytest.mark.rest
@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_claude_code_has_its_context_counted(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], proves: Proves
) -> None:
    here = rig(upstream)
    ran = ask(here, client("claude-code"), "/context")
    assert ran.code == 0, ran
    counted = [path for method, path in here.door.requests if path.startswith("/v1/messages/count_tokens")]
    assert len(counted) > 5, here.door.requests
    assert set(here.door.answered) == {200}
    proves("Claude Code", upstream, "counts")

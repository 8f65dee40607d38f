"""Gemini CLI works through the gateway on upstreams of every protocol."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clients.gemini_cli import ask, result, run, text_of
from clients.proof import Proves
from clients.rig import ALL_UPSTREAMS, Rig, on_every_upstream
from fakes.agent import Use
from gateway import KEY

WRITE = Use("write_file", {"file_path": "note.txt", "content": "Grüße 👋\nzwei\n"})
READ = Use("read_file", {"file_path": "note.txt"})
EDIT = Use(
    "replace", {"file_path": "note.txt", "old_string": "zwei", "new_string": "drei", "instruction": "Change a word."}
)


@on_every_upstream("chat", ALL_UPSTREAMS)
def test_gemini_cli_writes_reads_and_edits_a_file(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], node: Path, proves: Proves
) -> None:
    here = rig(upstream, WRITE, READ, EDIT)
    ran = ask(here, node, client("gemini-cli"), "Write a note, read it and edit it.")
    assert ran.code == 0, ran
    assert result(ran)["status"] == "success", ran
    assert "Finished. The last tool said: Successfully modified file" in text_of(ran), ran
    assert (here.work / "note.txt").read_text() == "Grüße 👋\ndrei\n"
    assert here.agent.complaints == []
    assert any("zwei" in found for found in here.agent.requests[-1].results)
    proves("Gemini CLI", upstream, "tools", "streamed", "edits")


@pytest.mark.rest
def test_gemini_cli_works_with_what_connect_has_written(
    rig: Callable[..., Rig], client: Callable[[str], Path], node: Path
) -> None:
    here = rig("chat", WRITE)
    wrote = here.run(sys.executable, "-m", "dragoman", "connect", "gemini", "--write", "--url", here.url, "-m", "up/m")
    assert wrote.code == 0, wrote
    ran = run(here, node, client("gemini-cli"), "Write a note.", {"GEMINI_API_KEY": KEY})
    assert ran.code == 0, ran
    assert (here.work / "note.txt").exists()
    assert here.door.requests[-1] == ("POST", "/v1beta/models/up/m:streamGenerateContent?alt=sse")
    undone = here.run(sys.executable, "-m", "dragoman", "connect", "gemini", "--undo")
    assert undone.code == 0, undone
    assert not (here.home / ".gemini" / ".env").exists()

"""The page on debugging shows what its commands really print: they are run again, on a Kiro that cuts a tool call."""

import os
import re
import shlex
from pathlib import Path

import pytest

from asking import ask
from fakes.eventstream import event
from fakes.kiro import FakeKiro, make_framed, tail, tool, words
from gateway import running
from shell import Shell
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "debugging.md"
FIXTURES = ROOT / "tests" / "fixtures" / "captures"
BLOCK = re.compile(r"```console\n\$ dragoman (?P<words>[^\n]*)\n(?P<shown>.*?)```", re.DOTALL)
MODEL = "kiro/claude-sonnet-4.5"
WRITE = {
    "name": "write",
    "description": "Writes a file.",
    "input_schema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
        "required": ["path", "lines"],
    },
}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a shell after Kiro has cut a tool call and has not sent its rest either."""
    debug = f'[debug]\ncapture = "errors"\ndirectory = "{tmp_path / "captures"}"\n'
    with FakeKiro() as fake:
        credentials = fake.sign_in(tmp_path / "kiro-auth-token.json")
        cut = (words("I will"), words(" write it."), tool("t1", "write"), tool("t1", input='{"path": "notes/to'))
        fake.replies = [
            make_framed(event("messageMetadataEvent", {"conversationId": "fake"}), *cut, cut=200, pause_s=0.03),
            make_framed(words("What do you mean?"), tail()),
        ]
        with running(debug + fake.section(credentials), tmp_path) as gateway:
            sdk = {"user-agent": "Anthropic/Python 1.0"}
            reply = ask(gateway, "messages", MODEL, "Write my notes.", stream=True, headers=sdk, tools=[WRITE])
            assert b'"stop_reason":"max_tokens"' in reply.body
            wait_until(lambda: gateway.app.gateway.captures.counts.written == 1)
        return Shell(tmp_path)


def cells(shown: str) -> list[str]:
    """What stands in the lines and columns, whatever the times, ports, sizes and ids."""
    found = [cell for line in shown.splitlines() for cell in re.split(r"\s{2,}", line.strip()) if cell]
    plain = [re.sub(r"(?<=msg_)[0-9a-f]+.*|[0-9a-f]{16,}|\d+(?:[.:]\d+)*", "0", cell) for cell in found]
    return sorted(cell for cell in plain if cell != "0")


def run(shell: Shell, command: str) -> str:
    if "edited.json" in command:
        fixture = shell.read("tests/fixtures/captures/kiro-cut-call.json")
        shell.write("edited.json", fixture.replace(" write it.", " write them."))
    done = shell.run(*shlex.split(command))
    assert done.err == ""
    assert done.code == (1 if "edited.json" in command else 0)
    return done.out


@pytest.mark.rest
def test_the_page_shows_what_is_really_printed(shell: Shell) -> None:
    page = PAGE.read_text()
    blocks = list(BLOCK.finditer(page))
    assert [block["words"] for block in blocks] == [
        "capture list",
        "capture show last",
        "replay last",
        "replay last --as-fixture kiro-cut-call",
        "replay edited.json",
        "capture export last notes",
    ]
    printed = [run(shell, block["words"]) for block in blocks]
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        fresh = iter(printed)
        PAGE.write_text(BLOCK.sub(lambda block: f"```console\n$ dragoman {block['words']}\n{next(fresh)}```", page))
        FIXTURES.mkdir(exist_ok=True)
        (FIXTURES / "kiro-cut-call.json").write_text(shell.read("tests/fixtures/captures/kiro-cut-call.json"))
        return
    for block, out in zip(blocks, printed, strict=True):
        assert cells(block["shown"]) == cells(out), f"docs/debugging.md is stale: {block['words']}"
    timelines = [out for block, out in zip(blocks, printed, strict=True) if "last" in block["words"].split()[-1]]
    assert max(len(line) for out in timelines for line in out.splitlines()) <= 120, "wider than a terminal"

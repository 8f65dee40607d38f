"""The page on debugging shows what its commands really print: they are run again, on a Kiro that cuts a tool call."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import anthropic
import pytest
from anthropic.types import ToolParam

from fakes.eventstream import event
from fakes.kiro import FakeKiro, make_framed, sign, tail, tool, words
from gateway import KEY, running
from shell import Shell
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "debugging.md"
FIXTURES = ROOT / "tests" / "fixtures" / "captures"
BLOCK = re.compile(r"```console\n\$ dragoman (?P<words>[^\n]*)\n(?P<shown>.*?)```", re.DOTALL)
MODEL = "kiro/claude-sonnet-4.5"
WRITE: ToolParam = {
    "name": "write",
    "description": "Writes a file.",
    "input_schema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
        "required": ["path", "lines"],
    },
}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Return a shell after Kiro has cut a tool call and has not sent its rest either."""
    file = tmp_path / "kiro-auth-token.json"
    debug = f'[debug]\ncapture = "errors"\ndirectory = "{tmp_path / "captures"}"\n'
    with FakeKiro() as fake:
        tokens = fake.issue()
        sign(file, str(tokens["accessToken"]), str(tokens["refreshToken"]), 7200)
        cut = (words("I will"), words(" write it."), tool("t1", "write"), tool("t1", input='{"path": "notes/to'))
        fake.replies = [
            make_framed(event("messageMetadataEvent", {"conversationId": "fake"}), *cut, cut=200, pause_s=0.03),
            make_framed(words("What do you mean?"), tail()),
        ]
        with running(debug + fake.section(str(file)), tmp_path) as gateway:
            client = anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0)
            with client.messages.stream(
                model=MODEL,
                max_tokens=1000,
                tools=[WRITE],
                messages=[{"role": "user", "content": "Write my notes."}],
            ) as stream:
                assert stream.get_final_message().stop_reason == "max_tokens"
            wait_until(lambda: gateway.app.gateway.captures.counts.written == 1)
        yield Shell(tmp_path)


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


def test_no_line_of_a_timeline_is_longer_than_a_terminal_is_wide(shell: Shell) -> None:
    assert max(map(len, run(shell, "capture show last").splitlines())) <= 120
    assert max(map(len, run(shell, "replay last").splitlines())) <= 120

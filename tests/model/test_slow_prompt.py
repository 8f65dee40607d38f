"""A model that reads a long prompt for most of a minute is waited for, with the gateway's default time-outs."""

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from clients import claude_code
from clients.install import ensure_installed, native
from clients.rig import Rig
from fakes.agent import Agent
from fakes.agents import chat
from fakes.doorway import Doorway
from fakes.upstream import FakeUpstream
from gateway import running
from model import install
from model.server import serving

Show = Callable[[object], None]

CONTEXT = 8192
# One token after another, by one thread: the real server, as slow as a large model on a small machine.
SLOW = ("--n_ctx", str(CONTEXT), "--n_threads", "1", "--n_batch", "1")
READING_S = 40.0
PATIENCE_S = 500.0
SETTINGS = """[providers.real]
kind = "openai-compatible"
endpoint = "{url}"
quirks = "llama-cpp-python"

[[models]]
name = "*"
to = ["real/smollm2"]
"""
BRIEF = "You are a helpful assistant. Answer in one short sentence."
LINE = "The quick brown fox jumps over the lazy dog. "
TOKENS_OF_LINE = 10


@pytest.fixture
def slow_server(report: Show, tmp_path: Path) -> Iterator[str]:
    directory = tmp_path / "server"
    directory.mkdir()
    with serving(install.install(report), directory, *SLOW) as url:
        yield url


def seconds_per_line(url: str) -> float:
    """How long the server reads one line of a prompt."""
    lines = 20
    body = {"model": "smollm2", "max_tokens": 1, "messages": [{"role": "user", "content": LINE * lines}]}
    request = urllib.request.Request(
        f"{url}/chat/completions", msgspec.json.encode(body), {"content-type": "application/json"}
    )
    begun = time.monotonic()
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        reply.read()
    return (time.monotonic() - begun) / lines


def test_claude_code_is_answered_by_a_model_that_reads_for_40_s(
    slow_server: str, tmp_path: Path, report: Show, show: Show
) -> None:
    home, work, state = (tmp_path / name for name in ("home", "work", "gateway"))
    for path in (home, work, state):
        path.mkdir()
    lines = round(1.5 * READING_S / seconds_per_line(slow_server))
    prompt = LINE * min(lines, (CONTEXT - 1000) // TOKENS_OF_LINE) + "What does the fox jump over?"
    with running(SETTINGS.format(url=slow_server), state) as gateway, Doorway(gateway.port) as door:
        rig = Rig(gateway, FakeUpstream(), Agent(chat, ()), home, work, door)
        binary = native(ensure_installed("claude-code", report), "@anthropic-ai/claude-code-*/claude")
        mode = ("--output-format", "stream-json", "--verbose", "--system-prompt", BRIEF, "--tools", "")
        words = (binary, "-p", prompt, "--model", "smollm2", *mode)
        ran = rig.run(*words, patience_s=PATIENCE_S, env=claude_code.settings(rig))
        ended = claude_code.result(ran)
        read_s = max(outcome.ttft_s or 0.0 for outcome in gateway.outcomes)
    show(f"first token after {read_s:.1f} s: {ended['result']}")
    assert ran.code == 0, ran
    assert ended["subtype"] == "success", ran
    assert read_s >= READING_S, "the model was too quick for this to prove anything"
    assert sum(method == "POST" for method, _ in door.requests) == 1, "it got more than one request"

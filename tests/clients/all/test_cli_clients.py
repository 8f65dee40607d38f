"""opencode, aider and llm do their work through the gateway on upstreams of every protocol."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from clients.driven import NOTE
from clients.install import native
from clients.proof import Proves
from clients.rig import ALL_UPSTREAMS, Ran, Rig
from dragoman.operate.clients.connecting import RECIPES
from dragoman.operate.configuration.effective import GatewayTarget
from fakes.agent import Use
from gateway import KEY

Rigging = Callable[..., Rig]
Client = Callable[[str], Path]
upstreams = pytest.mark.parametrize("upstream", ALL_UPSTREAMS)

EDIT = """Here is the file.

written.txt
```
Grüße 👋
```
"""
WRITE_NOTE = """
def write_note(title: str, text: str) -> str:
    "Writes a note."
    from pathlib import Path
    Path(f"{title}.txt").write_text(text)
    return f"wrote {title}"
"""


@upstreams
@pytest.mark.parametrize("provider", ["anthropic", "openai", "openai-compatible"])
def test_opencode_writes_a_file(
    provider: str, upstream: str, rig: Rigging, client: Client, tmp_path: Path, proves: Proves
) -> None:
    file = tmp_path / "work" / "written.txt"
    here = rig(upstream, Use("write", {"filePath": str(file), "content": "Grüße 👋\n"}))
    options = {"baseURL": f"{here.url}/v1", "apiKey": KEY}
    gateway = {"npm": f"@ai-sdk/{provider}", "options": options, "models": {"some-model": {"name": "some-model"}}}
    config = {"$schema": "https://opencode.ai/config.json", "provider": {"gateway": gateway}, "autoupdate": False}
    folder = here.home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_bytes(msgspec.json.encode(config))
    binary = native(client("opencode"), "opencode-*/bin/opencode")
    arguments = ("run", "--format", "json", "-m", "gateway/some-model", "--auto", "Write a file.")
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    ran = here.run(binary, *arguments, patience_s=120, env=quiet)
    assert ran.code == 0, ran
    assert "Finished. The last tool said: Wrote file successfully" in ran.out, ran
    assert file.read_text() == "Grüße 👋\n"
    assert here.agent.complaints == []
    proves("opencode", upstream, "tools", "streamed")


@upstreams
@pytest.mark.parametrize("speaks", ["chat", "messages"])
def test_aider_edits_a_file(
    speaks: str, upstream: str, rig: Rigging, client: Client, tmp_path: Path, proves: Proves
) -> None:
    here = rig(upstream)
    here.agent.words = EDIT
    (tmp_path / "work" / "written.txt").write_text("old\n")
    given = {
        "chat": {"OPENAI_API_BASE": f"{here.url}/v1", "OPENAI_API_KEY": KEY},
        "messages": {"ANTHROPIC_API_BASE": here.url, "ANTHROPIC_API_KEY": KEY},
    }[speaks]
    model = {"chat": "openai/gpt-4o", "messages": "anthropic/claude-sonnet-4-5"}[speaks]
    quiet = ("--yes-always", "--analytics-disable", "--no-check-update", "--no-pretty", "--no-git", "--no-gitignore")
    how = ("--model", model, "--edit-format", "whole", "--map-tokens", "0", "--message", "Say hello in it.")
    ran = here.run(
        client("aider") / "bin" / "python", "-m", "aider", *quiet, *how, "written.txt", patience_s=120, env=given
    )
    assert ran.code == 0, ran
    assert "Applied edit to written.txt" in ran.out, ran
    assert (tmp_path / "work" / "written.txt").read_text() == "Grüße 👋\n"
    assert here.agent.complaints == []
    proves("aider", upstream, "edits", "streamed")


@upstreams
@pytest.mark.parametrize(
    ("speaks", "more"), [("chat", ()), ("chat", ("--no-stream",)), ("responses", ()), ("messages", ())]
)
def test_llm_uses_a_tool(
    speaks: str, more: tuple[str, ...], upstream: str, rig: Rigging, client: Client, tmp_path: Path, proves: Proves
) -> None:
    here = rig(upstream, NOTE)
    ran = llm(here, client("llm"), speaks, *more)
    assert ran.code == 0, ran
    assert "Finished. The last tool said: wrote first" in ran.out, ran
    assert isinstance(NOTE.given, dict)
    assert (tmp_path / "work" / "first.txt").read_text() == NOTE.given["text"]
    assert here.agent.complaints == []
    proves("llm", upstream, "tools", "whole" if more else "streamed")


def llm(rig: Rig, directory: Path, speaks: str, *more: str) -> Ran:
    home = rig.home / "llm"
    home.mkdir()
    lines = RECIPES["llm"].lines(GatewayTarget(rig.url, "some-model"))  # what `dragoman connect llm` prints
    (home / "extra-openai-models.yaml").write_text("\n".join(lines))
    (home / "keys.json").write_bytes(msgspec.json.encode({"dragoman": KEY, "openai": KEY, "anthropic": KEY}))
    given = {"LLM_USER_PATH": str(home), "OPENAI_BASE_URL": f"{rig.url}/v1", "ANTHROPIC_BASE_URL": rig.url}
    model = {"chat": "dragoman", "responses": "gpt-5.5", "messages": "claude-sonnet-4.5"}[speaks]
    arguments = ("-m", model, "--functions", WRITE_NOTE, "--td", *more, "Write a note.")
    return rig.run(directory / "bin" / "python", "-m", "llm", *arguments, env=given)


@pytest.mark.parametrize(
    ("program", "name", "words"),
    [
        ("opencode", "opencode", ("run", "Hello from launch")),
        (
            "aider",
            "aider",
            ("--message", "Hello from launch", "--yes-always", "--analytics-disable", "--no-check-update", "--no-git"),
        ),
    ],
)
def test_opencode_and_aider_are_launched(
    program: str, name: str, words: tuple[str, ...], rig: Rigging, client: Client, tmp_path: Path
) -> None:
    here = rig("chat")
    (tmp_path / "bin").mkdir()
    if name == "opencode":
        (tmp_path / "bin" / program).symlink_to(native(client(name), "opencode-*/bin/opencode"))
    else:
        (tmp_path / "bin" / program).write_text(f'#!/bin/sh\nexec "{client(name)}/bin/python" -m aider "$@"\n')
        (tmp_path / "bin" / program).chmod(0o755)
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1", "DRAGOMAN_LOCAL_PORTS": ""}
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    launch = (sys.executable, "-m", "dragoman", "launch", program, "--", *words)
    ran = here.run(*launch, patience_s=120, env={**quiet, "PATH": path})
    assert ran.code == 0, ran
    assert "Hello from launch" in ran.out, ran

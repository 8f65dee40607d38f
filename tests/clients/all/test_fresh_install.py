"""From the built wheel in an empty environment to an answer in Claude Code, without an account and without a file."""

import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

from clients.claude_code import QUIET
from clients.install import native

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 600


def run(*words: str | Path, **environ: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=environ.get("HOME", str(ROOT)),
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_alone_launches_claude_code(tmp_path: Path, client: Callable[[str], Path]) -> None:
    binary = native(client("claude-code"), "@anthropic-ai/claude-code-*/claude")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    place = tmp_path / "environment"
    venv.create(place, with_pip=True, symlinks=True)
    began = time.monotonic()
    locked = ("--require-hashes", "-r", ROOT / "requirements.lock")
    run(place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *locked)
    run(place / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    installed = time.monotonic()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "claude").symlink_to(binary)
    home = tmp_path / "home"
    home.mkdir()
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environ = {**QUIET, "HOME": str(home), "PATH": path, "DRAGOMAN_LOCAL_PORTS": ""}
    answer = run(place / "bin" / "dragoman", "launch", "claude", "-p", "Hello from the wheel", **environ)
    answered = time.monotonic()
    assert answer.rstrip().endswith("Hello from the wheel")
    print(f"installed in {installed - began:.1f} s, answered {answered - installed:.1f} s later")

"""The commands of README.md: in its blocks, and in code within its sentences and tables."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
PROGRAMS = (
    *("dragoman", "make", "curl", "export", "docker", "podman", "git", "python", "python3", "pip", "pipx", "uv", "uvx"),
    *("npm", "npx", "claude", "codex", "gemini", "aider", "opencode"),
)
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
SHOWN_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
COMMENT = re.compile(r"\s+# .*$", re.MULTILINE)
WORDS = re.compile(r"(?:\w+=\S+ )*(\S+) .")
# `docker` runs in `make test-container`, which builds the image with other programs.
CONTAINER = "docker build -t dragoman . && docker run --rm -p 127.0.0.1:8484:8484 -v dragoman:/data dragoman"
INSTALLS = (
    "make run",
    "uvx --from . dragoman serve",
    "pipx install . && dragoman serve",
    "python3 -m pip wheel --no-deps -w dist . && python3 -m pip install dist/*.whl && dragoman serve",
)


def list_shown(text: str = TEXT) -> list[tuple[str, str]]:
    """Return each command of the blocks that show output, with that output."""
    blocks = [content for language, content in BLOCK.findall(text) if language == "console"]
    return [(found[1], found[2]) for block in blocks for found in SHOWN_COMMAND.finditer(block)]


def list_commands(text: str = TEXT) -> list[str]:
    """Return the commands of the page: those of its blocks, then those of its sentences."""
    scripts = [COMMENT.sub("", content) for language, content in BLOCK.findall(text) if language == "sh"]
    lines = [line for script in scripts for line in script.splitlines() if line]
    spans = [span for span in SPAN.findall(BLOCK.sub("", text)) if _is_command(span)]
    return list(dict.fromkeys([*(line for line, _ in list_shown(text)), *lines, *spans]))


def _is_command(span: str) -> bool:
    """A program with at least one argument: the name alone may be that of a client or a provider."""
    words = WORDS.match(span)
    return words is not None and words[1] in PROGRAMS

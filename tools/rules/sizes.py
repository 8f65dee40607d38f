"""No function has more than 60 lines, no file more than 600: a file is one noun with everything about it."""

import ast
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
FOLDERS = ("src", "tests", "bench", "tools")


def find_problems(root: Path) -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield from find_long(path.read_text(), str(path.relative_to(root)))


def find_long(source: str, name: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{name}: {lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{name}:{node.lineno} {node.name}: {length} lines, at most {MAX_FUNCTION_LINES}"

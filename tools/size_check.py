"""Fail when a file has more than 400 lines or a function more than 60.

Exceptions are listed in EXCEPTIONS, each with its reason.
"""

import ast
import sys
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
EXCEPTIONS: dict[str, str] = {}


def main() -> int:
    root = Path(__file__).parent.parent
    problems = [
        problem
        for folder in ("src", "tests", "bench", "tools")
        for path in sorted((root / folder).rglob("*.py"))
        for problem in find_problems(path, str(path.relative_to(root)))
    ]
    print("\n".join(problems) or "Sizes are within bounds.")
    return 1 if problems else 0


def find_problems(path: Path, name: str) -> list[str]:
    if name in EXCEPTIONS:
        return []
    text = path.read_text()
    found = []
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        found.append(f"{name}: {lines} lines, at most {MAX_FILE_LINES}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{name}:{node.lineno} {node.name}: {length} lines, at most {MAX_FUNCTION_LINES}")
    return found


if __name__ == "__main__":
    sys.exit(main())

"""An exception is always true, and its text may be empty: `describe_cause` says what happened."""

import ast
from collections.abc import Iterator
from pathlib import Path

ADVICE = "an exception is always true, and its text may be empty; use describe_cause of dragoman.translate.hub.failure"


def find_problems(root: Path) -> Iterator[str]:
    for module in sorted((root / "src").rglob("*.py")):
        for place in find_truth_tests(module.read_text()):
            yield f"{module.relative_to(root)}:{place}: {ADVICE}"


def find_truth_tests(source: str) -> Iterator[str]:
    """Yield the places of `error or ...` and `str(error) or ...` where `error` was caught, with line and name."""
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        for node in ast.walk(handler):
            if isinstance(node, ast.BoolOp) and _is_exception(node.values[0], handler.name):
                yield f"{node.lineno}: {handler.name}"


def _is_exception(node: ast.expr, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        node = node.args[0]
    return isinstance(node, ast.Name) and node.id == name

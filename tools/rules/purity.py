"""The core calls nothing that reads a clock, draws random values or does I/O; import-linter bans the modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

CORE = ("hub", "framing", "protocols", "passes", "stages", "observers", "prices", "caching")
READS_CLOCK = {f"{name}.{method}" for name in ("datetime", "date") for method in ("now", "utcnow", "today")}
DRAWS_RANDOM = {f"uuid.{name}" for name in ("uuid1", "uuid4", "uuid6", "uuid7", "uuid8", "getnode")}
DOES_IO = {"open", "print", "breakpoint", "__import__"}
BANNED = READS_CLOCK | {f"datetime.{name}" for name in READS_CLOCK} | DRAWS_RANDOM | DOES_IO
BANNED_IMPORTS = {"uuid": {name.removeprefix("uuid.") for name in DRAWS_RANDOM}}


def find_problems(root: Path) -> Iterator[str]:
    for folder in CORE:
        modules = sorted((root / "src" / "dragoman" / folder).rglob("*.py"))
        assert modules, folder
        for path in modules:
            yield from (f"{path.relative_to(root)}:{found}" for found in find_impure(path.read_text()))


def find_impure(source: str) -> Iterator[str]:
    """Yield what the source calls or mentions of the banned names, as `line: name`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            banned = BANNED_IMPORTS.get(node.module or "", set())
            yield from (f"{node.lineno}: {node.module}.{alias.name}" for alias in node.names if alias.name in banned)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            name = ast.unparse(node)
            if name in BANNED:
                yield f"{node.lineno}: {name}"

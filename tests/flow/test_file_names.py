"""Every module of the flow package has a test that exercises it by itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import dragoman.flow

TESTS = Path(__file__).parent
[PACKAGE] = map(Path, dragoman.flow.__path__)

# Modules of types alone, and the test of a module that fills them.
TYPES = {"format": "test_files"}
NOT_RUN = ("__init__", "ports")  # nothing to run: interfaces, which mypy compares with the classes


def imported_modules(path: Path) -> Iterator[str]:
    """Yield what a test imports, itself or through the rigs of this directory."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            if node.module.startswith("flow."):
                yield from imported_modules((TESTS.parent / node.module.replace(".", "/")).with_suffix(".py"))


def test_each_module_has_a_test_of_its_name_that_imports_it() -> None:
    tests = {path.stem: set(imported_modules(path)) for path in TESTS.rglob("test_*.py")}
    for path in PACKAGE.rglob("*.py"):
        if path.stem not in NOT_RUN:
            module = ".".join(("dragoman", "flow", *path.relative_to(PACKAGE).with_suffix("").parts))
            name = TYPES.get(path.stem, f"test_{path.stem}")
            assert module in tests.get(name, ()), f"tests/flow/{name}.py does not import {module}"

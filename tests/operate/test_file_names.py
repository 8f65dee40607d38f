"""Every module of this room has a test file of its name, which calls it without a terminal."""

import ast
from pathlib import Path

import dragoman.operate

TESTS = Path(__file__).parent
ELSEWHERE = {"catalogue"}  # a table, which tests/e2e/test_scrape.py compares with docs/metrics.md


def test_each_module_has_a_test_of_its_name() -> None:
    [package] = dragoman.operate.__path__
    modules = {path.stem for path in Path(package).rglob("*.py") if path.stem != "__init__"}
    tested = {path.stem.removeprefix("test_") for path in TESTS.rglob("test_*.py")}
    assert not modules - tested - ELSEWHERE


def test_no_module_prints() -> None:
    [package] = dragoman.operate.__path__
    calls = [node for path in Path(package).rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    assert not any(isinstance(node, ast.Name) and node.id == "print" for node in calls)

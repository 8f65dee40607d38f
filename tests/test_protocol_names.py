"""No protocol is named outside its folder and the providers and settings that choose it."""

import ast
from pathlib import Path

import pytest

from dragoman.protocols import PROTOCOLS

SOURCES = Path(__file__).parents[1] / "src" / "dragoman"
PACKAGES = ("flow", "http", "accounts", "store", "net", "stages", "passes", "framing")
ALL = [
    *(path for package in PACKAGES for path in sorted((SOURCES / package).rglob("*.py"))),
    SOURCES / "app.py",
    SOURCES / "routing.py",
]


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(SOURCES)))
def test_a_module_names_no_protocol(path: Path) -> None:
    strings = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    named = [(node.lineno, node.value) for node in strings if node.value in PROTOCOLS]
    assert named == []

"""The core calls nothing that reads a clock, draws random values or does I/O; import-linter bans the modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "dragoman"
CORE = ("hub", "framing", "protocols", "passes", "stages", "observers", "prices")
MODULES = sorted(file for folder in CORE for file in (PACKAGE / folder).rglob("*.py"))
READS_CLOCK = {f"{name}.{method}" for name in ("datetime", "date") for method in ("now", "utcnow", "today")}
DRAWS_RANDOM = {f"uuid.{name}" for name in ("uuid1", "uuid4", "uuid6", "uuid7", "uuid8", "getnode")}
DOES_IO = {"open", "print", "breakpoint", "__import__"}
BANNED = READS_CLOCK | {f"datetime.{name}" for name in READS_CLOCK} | DRAWS_RANDOM | DOES_IO
BANNED_IMPORTS = {"uuid": {name.removeprefix("uuid.") for name in DRAWS_RANDOM}}


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


@pytest.mark.parametrize("folder", CORE)
def test_no_module_of_the_core_reads_a_clock_draws_random_values_or_does_io(folder: str) -> None:
    modules = [file for file in MODULES if file.is_relative_to(PACKAGE / folder)]
    assert modules
    found = {str(file.relative_to(PACKAGE)): list(find_impure(file.read_text())) for file in modules}
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from datetime import datetime\nat = datetime.now()", ["2: datetime.now"]),
        ("import datetime as d, datetime\nat = datetime.datetime.utcnow()", ["2: datetime.datetime.utcnow"]),
        ("from uuid import UUID, uuid4", ["1: uuid.uuid4"]),
        ("import uuid\nid = uuid.uuid4().hex", ["2: uuid.uuid4"]),
        ("clock = date.today", ["1: date.today"]),
        ("print(open('x').read())", ["1: print", "1: open"]),
        ("def read(self, now):\n    return self.now() + now() + self.open(1)", []),
        ("from datetime import datetime\nat = datetime.fromtimestamp(now, UTC)", []),
    ],
)
def test_impure_code_is_found_and_pure_code_is_not(source: str, names: list[str]) -> None:
    assert list(find_impure(source)) == names

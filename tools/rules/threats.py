"""THREAT_MODEL.md names code and a test for each threat, and all of them exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PAGE = "THREAT_MODEL.md"
NAME = re.compile(r"`([^`]+)`")
ROW = re.compile(r"\| (?!threat \||---)(.+) \| (.+) \| (.+) \|")


def find_problems(root: Path) -> Iterator[str]:
    for problem in find_gaps(root, (root / PAGE).read_text()):
        yield f"{PAGE}: {problem}"


def find_gaps(root: Path, page: str) -> Iterator[str]:
    """Yield each row without code or test, and each name of something that does not exist."""
    for line in page.splitlines():
        row = ROW.fullmatch(line)
        if row is None:
            if line.startswith("|") and line.count("|") != 4:
                yield f"not a row of three columns: {line[:80]}"
            continue
        threat, code, tests = row.groups()
        files, names = NAME.findall(code), NAME.findall(tests)
        if not files or not names:
            yield f"no code or no test is named: {threat[:80]}"
        yield from (f"{file} does not exist" for file in files if not (root / file).exists())
        yield from (f"{name} does not exist" for name in names if not _has_test(root, name))


def _has_test(root: Path, name: str) -> bool:
    file, separator, test = name.partition("::")
    return bool(separator) and test in _list_tests(root / file)


@cache
def _list_tests(file: Path) -> frozenset[str]:
    if not file.is_file():
        return frozenset()
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    names = (node.name for node in ast.parse(file.read_text()).body if isinstance(node, functions))
    return frozenset(name for name in names if name.startswith("test_"))

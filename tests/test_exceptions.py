"""No exception is changed on its way: what is to be known of a failure is given when it is made."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "dragoman"
PACKAGES = sorted(path for path in SOURCES.iterdir() if path.is_dir() and path.name != "__pycache__")


def find_changes(source: str) -> Iterator[str]:
    """Yield where an attribute is set on an exception that was caught, is passed as an argument or is raised."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            exceptions = set(_exception_names(function))
            for node in ast.walk(function):
                match node:
                    case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=context) if name in exceptions:
                        if isinstance(context, ast.Store | ast.Del) or attribute == "add_note":
                            yield f"{node.lineno}: {name}.{attribute}"


def _exception_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.ExceptHandler(name=str(name)) | ast.Raise(exc=ast.Name(id=name)):
                yield name
            case ast.arg(arg=name, annotation=ast.expr() as annotation):
                if any(word in ast.unparse(annotation) for word in ("Exception", "Error", "Lost")):
                    yield name


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_changes_no_exception(package: Path) -> None:
    found = [(path.name, where) for path in sorted(package.rglob("*.py")) for where in find_changes(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("def f():\n try:\n  g()\n except OSError as error:\n  error.seen = True\n  raise", ["5: error.seen"]),
        ("def f():\n try:\n  g()\n except OSError as error:\n  error.add_note('x')\n  raise", ["5: error.add_note"]),
        ("def f(fault: BaseException):\n fault.seen = True", ["2: fault.seen"]),
        ("def f():\n refused = ValueError()\n refused.seen = True\n raise refused", ["3: refused.seen"]),
        ("def f():\n try:\n  g()\n except OSError as error:\n  self.errno = error.errno", []),
    ],
)
def test_a_change_is_found(source: str, changes: list[str]) -> None:
    assert list(find_changes(source)) == changes

"""A test that opens what lies beside the checkout fails, wherever the checkout lies."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outside_paths import Rules

TESTS = Path(__file__).parent
CASES = """
import contextlib
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[2] / "beside"


def test_read_beside():
    (BESIDE / "file").read_text()


def test_list_beside_and_catch():
    with contextlib.suppress(Exception):
        list(BESIDE.iterdir())


def test_write_beside_by_a_relative_path(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    Path("../../beside/new").write_text("x")


def test_allowed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("new").write_text(Path(__file__).read_text())
    list(tmp_path.parent.iterdir())
    with contextlib.suppress(FileNotFoundError):
        (BESIDE / "missing").read_text()
"""


def run_pytest(checkout: Path) -> str:
    shutil.copy(TESTS.parent / "pyproject.toml", checkout)
    (checkout / "tests").mkdir()
    for name in ("conftest.py", "outside_paths.py"):
        shutil.copy(TESTS / name, checkout / "tests")
    (checkout / "tests" / "test_cases.py").write_text(CASES)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "-rA"]
    return subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, check=False).stdout


@pytest.mark.rest
def test_a_test_that_opens_what_lies_beside_the_checkout_fails(tmp_path: Path) -> None:
    (checkout := tmp_path / "checkout").mkdir()
    (beside := tmp_path / "beside").mkdir()
    (beside / "file").write_text("not in a clone")
    output = run_pytest(checkout)
    for name in ("test_read_beside", "test_list_beside_and_catch", "test_write_beside_by_a_relative_path"):
        assert f"FAILED tests/test_cases.py::{name}" in output, output
    assert "PASSED tests/test_cases.py::test_allowed" in output, output
    assert f"{beside}/file is outside of the repository" in output
    assert not (beside / "new").exists()


def test_an_empty_list_of_parameters_is_an_error_at_collection(pytestconfig: pytest.Config) -> None:
    """A folder of fixtures that is not found would otherwise skip its cases."""
    assert pytestconfig.getini("empty_parameter_set_mark") == "fail_at_collect"


def test_the_longest_directory_decides() -> None:
    rules = Rules(refused=["/home/ann", "/tmp/x"], allowed=["/home/ann/.cache", "/tmp", "/tmp/x/checkout"])
    for path in ("/home/ann/.netrc", "/home/ann", "/tmp/x", "/tmp/x/shared/a", "/tmp/x/checkout/../shared/a"):
        assert rules.refuse(path), path
    for path in (
        "/home/ann/.cache/a",
        "/tmp/y",
        "/tmp/x/checkout/a",
        "/tmp/x/checkout",
        "/etc/hosts",
        "a",
        "/home/anna",
    ):
        assert not rules.refuse(path), path


def test_a_checkout_at_the_root_or_in_the_temporary_directory_has_nothing_beside_it() -> None:
    assert not Rules(refused=["/"], allowed=["/checkout"]).refuse("/etc/hosts")
    assert not Rules(refused=["/tmp"], allowed=["/tmp", "/tmp/checkout"]).refuse("/tmp/pytest-of-ann/a")

"""A table of rows is one test that runs all of them and names those that fail."""

import inspect

import pytest

from tables import each_row


def test_all_rows_run_and_the_failing_ones_are_named() -> None:
    seen: list[tuple[int, str]] = []

    @each_row(("number", "letter"), [(1, "a"), pytest.param(2, "b", id="two"), (3, "c")])
    def check(number: int, letter: str, fixture: str) -> None:
        seen.append((number, letter))
        assert fixture == "x"
        assert number == 1

    assert list(inspect.signature(check).parameters) == ["fixture"]
    with pytest.raises(AssertionError) as caught:
        check(fixture="x")
    assert seen == [(1, "a"), (2, "b"), (3, "c")]
    assert caught.value.__notes__ == ["failing rows:\n{'number': 2, 'letter': 'b'}\n{'number': 3, 'letter': 'c'}"]


def test_two_tables_are_multiplied_and_an_empty_one_is_refused() -> None:
    seen: list[tuple[int, str]] = []

    @each_row("number", [1, 2])
    @each_row("letter", "ab")
    def check(number: int, letter: str) -> None:
        seen.append((number, letter))

    check()
    assert seen == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    with pytest.raises(AssertionError, match="proves nothing"):
        each_row("number", [])

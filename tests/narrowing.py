"""Assert the type of a value, for the type checker."""

from collections.abc import Iterable
from typing import TypeVar

Expected = TypeVar("Expected")


def expect(kind: type[Expected], value: object) -> Expected:
    """Return the value if it is of this type; fail the test otherwise."""
    assert isinstance(value, kind), f"{value!r} is no {kind.__name__}"
    return value


def present(value: Expected | None) -> Expected:
    """Return the value; fail the test if it is None."""
    assert value is not None
    return value


def expect_all(kind: type[Expected], values: Iterable[object]) -> list[Expected]:
    """Return the values if all of them are of this type; fail the test otherwise."""
    return [expect(kind, value) for value in values]

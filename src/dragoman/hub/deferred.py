"""Functions whose modules are imported when they are first called."""

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, force_setattr

P = ParamSpec("P")
R = TypeVar("R")


class Deferred(Generic[P, R]):
    """Stands in a record for a function that `load` imports, and is replaced by it at the first call.

    As a decorator of `load`, so that the import is visible to tools that check imports.
    """

    __slots__ = ("_load", "_places")

    def __init__(self, load: Callable[[], Callable[P, R]]) -> None:
        self._load = load
        self._places: list[tuple[Struct, str]] = []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        function = self._load()
        for record, name in self._places:
            force_setattr(record, name, function)
        return function(*args, **kwargs)

    def add_place(self, record: Struct, name: str) -> None:
        self._places.append((record, name))


def replace_when_called(record: Struct) -> None:
    """Have each deferred function in a record, and in the records that it holds, replaced at its first call."""
    for name, value in asdict(record).items():
        if isinstance(value, Deferred):
            value.add_place(record, name)
        elif isinstance(value, Struct):
            replace_when_called(value)

"""The raw settings of file, environment and flags in one tree, each with its origin."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from dragoman.config.lines import line_of
from dragoman.config.problems import Key, Problem, format_key

Raw = dict[str, object]


class Origin(Struct, frozen=True):
    """Where a value was set: a file and line, and the name of a variable or flag. Relative paths start at `base`."""

    file: str
    line: int | None
    name: str
    base: Path

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place} {self.name}".strip()


class Tree:
    """Raw values with their origins, and the problems that were found in them."""

    def __init__(self, values: Raw, whole: Origin, lines: dict[Key, int]) -> None:
        self.values = values
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self._whole = whole
        self._lines = lines
        self._set_later: dict[Key, Origin] = {}

    def origin(self, key: Key) -> Origin:
        """Return where this key was set, or the nearest enclosing key."""
        for length in range(len(key), 0, -1):
            if key[:length] in self._set_later:
                return self._set_later[key[:length]]
            if key[:length] in self._lines:
                break
        return Origin(self._whole.file, line_of(self._lines, key), "", self._whole.base)

    def get(self, key: Key) -> object:
        """Return the raw value at a path through tables, or None."""
        value: object = self.values
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def put(self, key: Key, value: object, origin: Origin) -> None:
        """Set a value, replacing any other. If an enclosing key is not a table, it stays, and validation reports it."""
        table: object = self.values
        for part in key[:-1]:
            table = table.setdefault(part, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table[key[-1]] = value
            self._set_later[key] = origin

    def put_default(self, key: Key, value: object, origin: Origin) -> None:
        if self.get(key) is None:
            self.put(key, value, origin)

    def problem(self, key: Key, message: str) -> None:
        origin = self.origin(key)
        label = f"{origin.name} ({format_key(key)})" if origin.name else format_key(key)
        self.problems.append(Problem(origin.file, origin.line, label, message))

    def warn(self, key: Key, message: str) -> None:
        self.warnings.append(f"{self.origin(key)}: {format_key(key)}: {message}")

    def origins(self) -> dict[str, str]:
        """Return where each value was set, by its key."""
        return {format_key(key): str(self.origin(key)) for key in _leaves((), self.values)}


def _leaves(at: Key, value: object) -> Iterator[Key]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves((*at, name), inner)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _leaves((*at, index), item)
    else:
        yield at

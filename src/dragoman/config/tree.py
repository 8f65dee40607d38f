"""The raw settings of file, environment and flags in one tree, each with its origin and its line."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from dragoman.config.problems import Key, Problem, format_key

TOKEN = re.compile(
    r'''
      (?P<text>"""(?:\\.|[^\\])*?"{3,5} | \'\'\'.*?\'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*')
    | (?P<newline>\n)
    | (?P<blank>[ \t]+ | \#[^\n]*)
    | (?P<word>[A-Za-z0-9_-]+)
    | (?P<mark>.)
    ''',
    re.VERBOSE | re.DOTALL,
)


def key_lines(source: str) -> dict[Key, int]:
    """Map every table and key path to its line. Keys inside an inline value have the line of that value's key."""
    return _Scan(source).lines


def line_of(lines: dict[Key, int], key: Key) -> int | None:
    """Return the line of a key, or of the nearest enclosing key that has one."""
    while key:
        if key in lines:
            return lines[key]
        key = key[:-1]
    return None


class _Scan:
    def __init__(self, source: str) -> None:
        self.lines: dict[Key, int] = {}
        self._tokens = self._read(source.replace("\r\n", "\n"))
        self._line = 1
        self._table: Key = ()
        self._arrays: dict[Key, int] = {}
        for kind, text in self._tokens:
            if kind == "mark" and text == "[":
                self._header()
            elif kind != "newline":
                self._assignment(kind, text)

    def _read(self, source: str) -> Iterator[tuple[str, str]]:
        for match in TOKEN.finditer(source):
            text = match.group()
            if match.lastgroup != "blank":
                yield match.lastgroup or "", text
            self._line += text.count("\n")

    def _header(self) -> None:
        line = self._line
        parts: list[str] = []
        is_array = False
        for kind, text in self._tokens:
            if kind == "newline":
                break
            if kind == "mark" and text == "[":
                is_array = True
            elif kind != "mark":
                parts.append(_unquote(kind, text))
        key = (*self._resolve(parts[:-1]), parts[-1])
        if is_array:
            self._arrays[key] = self._arrays.get(key, -1) + 1
            self.lines.setdefault(key, line)
        self._table = self._resolve_last(key)
        self._note(self._table, line)

    def _resolve(self, parts: list[str]) -> Key:
        """Insert the index of the current element wherever a path goes through an array of tables."""
        key: Key = ()
        for part in parts:
            key = self._resolve_last((*key, part))
        return key

    def _resolve_last(self, key: Key) -> Key:
        return (*key, self._arrays[key]) if key in self._arrays else key

    def _assignment(self, kind: str, text: str) -> None:
        line = self._line
        parts = [_unquote(kind, text)]
        for kind, text in self._tokens:
            if kind == "mark" and text == "=":
                break
            if kind != "mark":
                parts.append(_unquote(kind, text))
        self._note((*self._table, *parts), line)
        self._skip_value()

    def _skip_value(self) -> None:
        depth = 0
        for kind, text in self._tokens:
            if kind == "newline" and depth == 0:
                return
            if kind == "mark":
                depth += (text in "[{") - (text in "]}")

    def _note(self, key: Key, line: int) -> None:
        for length in range(1, len(key)):
            self.lines.setdefault(key[:length], line)
        self.lines[key] = line


def _unquote(kind: str, text: str) -> str:
    return str(tomllib.loads(f"key = {text}")["key"]) if kind == "text" else text


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

"""Find the line of every table and key in TOML text, which tomllib does not report."""

import re
import tomllib
from collections.abc import Iterator

from dragoman.config.problems import Key

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

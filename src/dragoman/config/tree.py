"""The raw settings of file, environment and flags in one tree, each with its origin and its line.

Tables of the tree are checked against the types of the settings, and every problem is noted with its place.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo

from dragoman.config.problems import Key, Problem, format_key, list_known, quote_choices, suggest
from dragoman.config.secret import SecretSource

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
S = TypeVar("S", bound=Struct)
_SHOWN = 80  # longest value that is quoted in a message

READABLE = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


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


class PlacedTable(Struct, frozen=True):
    """A table of the tree: where it stands, and its content, from which what has been read may be taken."""

    tree: "Tree"
    key: Key
    values: Raw

    def problem(self, name: str, text: str) -> None:
        """Note what is wrong with one of its settings."""
        self.tree.problem((*self.key, name), text)


class SettingOrigin(Struct, frozen=True):
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

    def __init__(self, values: Raw, whole: SettingOrigin, lines: dict[Key, int]) -> None:
        self.values = values
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self._whole = whole
        self._lines = lines
        self._set_later: dict[Key, SettingOrigin] = {}

    def origin(self, key: Key) -> SettingOrigin:
        """Return where this key was set, or the nearest enclosing key."""
        for length in range(len(key), 0, -1):
            if key[:length] in self._set_later:
                return self._set_later[key[:length]]
            if key[:length] in self._lines:
                break
        return SettingOrigin(self._whole.file, line_of(self._lines, key), "", self._whole.base)

    def get(self, key: Key) -> object:
        """Return the raw value at a path through tables, or None."""
        value: object = self.values
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def put(self, key: Key, value: object, origin: SettingOrigin) -> None:
        """Set a value, replacing any other. If an enclosing key is not a table, it stays, and validation reports it."""
        table: object = self.values
        for part in key[:-1]:
            table = table.setdefault(part, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table[key[-1]] = value
            self._set_later[key] = origin

    def put_default(self, key: Key, value: object, origin: SettingOrigin) -> None:
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


def read_section(tree: Tree, name: str, model: type[S]) -> S:
    """Return the settings of a top-level table; the defaults if it has problems, which are noted in the tree."""
    fields = read_fields(tree, (name,), model)
    return model() if fields is None else build_struct(model, fields)


def build_struct(model: type[S], fields: Mapping[str, object]) -> S:
    """Make a struct of fields that `read_fields` has checked."""
    return model(**fields)


def read_fields(
    tree: Tree,
    key: Key,
    model: type[Struct],
    internal: frozenset[str] = frozenset(),
    nested: frozenset[str] = frozenset(),
) -> dict[str, object] | None:
    """Check a table against the fields of a struct; None if it has problems, which are noted in the tree.

    `internal` are no keys of the file, `nested` are keys that the caller reads.
    """
    table = table_at(tree, key)
    if table is None:
        return None
    before = len(tree.problems)
    known = {info.encode_name: info for info in msgspec.structs.fields(model) if info.name not in internal}
    for name in table:
        if name not in known:
            tree.problem((*key, name), f"unknown key{suggest(name, list(known)) or list_known(known)}")
    fields: dict[str, object] = {}
    for name, info in known.items():
        if name in nested:
            continue
        if name in table:
            fields[info.name] = _convert(tree, (*key, name), table[name], info)
        elif info.required:
            tree.problem(key, f'"{name}" is missing')
    return fields if len(tree.problems) == before else None


def list_tables(tree: Tree, key: Key) -> range:
    """Return the indices of a list of tables; anything else is noted."""
    value = tree.get(key)
    if value is None:
        return range(0)
    if not isinstance(value, list):
        tree.problem(key, f"expected a list of tables: write [[{'.'.join(map(str, key))}]]")
        return range(0)
    return range(len(value))


def table_at(tree: Tree, key: Key) -> dict[str, object] | None:
    """Return the raw table at a path, empty if there is none; None if it is not a table, which is noted."""
    value: object = tree.values
    for part in key:
        if isinstance(value, dict):
            value = value.get(str(part), {})
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
    if isinstance(value, dict):
        return value
    tree.problem(key, f"expected a table, got {_kind_of(value)}")
    return None


def expand(text: str, base: Path, home: Path) -> Path:
    """Make a path absolute: `~` is the home directory, other relative paths start at `base`."""
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return base / text


def expand_source(source: SecretSource, base: Path, home: Path) -> SecretSource:
    """Return the source with its path, if it has one, made absolute."""
    text = source.text
    if text.startswith("file:"):
        text = f"file:{expand(text.removeprefix('file:'), base, home)}"
    elif text.startswith("~/"):
        text = str(expand(text, base, home))
    return SecretSource(text, source.key, source.file, source.line)


def _convert(tree: Tree, key: Key, value: object, info: FieldInfo) -> object:
    def read_special(expected: type, raw: object) -> object:
        if not isinstance(raw, str) or not raw.strip():
            raise ValueError("expected a string" if not isinstance(raw, str) else "must not be empty")
        origin = tree.origin(key)
        if expected is Path:
            return Path(raw)
        return SecretSource(raw, format_key(key), origin.file, origin.line)

    try:
        return msgspec.convert(value, info.type, dec_hook=read_special)
    except msgspec.ValidationError as error:
        tree.problem(key, _explain(str(error), value, info.type))
        return None


def _explain(message: str, value: object, expected: object) -> str:
    expected = get_args(expected)[0] if get_origin(expected) is Annotated else expected
    choices = _choices(expected)
    for item in _list_choosing(value, expected) if choices else ():
        if item not in choices:
            likely = suggest(item, choices) if isinstance(item, str) else ""
            return f"expected one of {quote_choices(choices)}{_describe_number(expected)}, got {_show(item)}{likely}"
    message, _, where = message.partition(" - at `$")
    message = message.replace(" | null`", "`")
    for name, words in READABLE.items():
        message = message.replace(f"`{name}`", words)
    message = message.replace("`", "").replace(" | nothing", "")
    message = re.sub(r" of length >= 1$", " that is not empty", message)
    message = message[:1].lower() + message[1:]
    index = where.rstrip("`")
    return f"{message} (at {index})" if index.strip("[.]") else _add_value(message, value, expected)


def _add_value(message: str, value: object, expected: object) -> str:
    """Add the value to the message, if it is a scalar and cannot be a secret."""
    if "SecretSource" in str(expected) or not isinstance(value, bool | int | float | str):
        return message
    shown = _show(value)
    before, got, kind = message.partition(", got ")
    if isinstance(value, str):
        return f"{before}, got the string {shown}" if got and len(value) <= _SHOWN else message
    return f"{before}, got {shown}" if kind != "a string" else message


def _show(value: object) -> str:
    """Return a scalar as TOML spells it, or what another value is."""
    if isinstance(value, bool | int | str):
        return msgspec.json.encode(value).decode()
    return str(value) if isinstance(value, float) else _kind_of(value)


def _choices(expected: object) -> tuple[str, ...]:
    """Return the words that a type allows: those of a Literal, of a tuple of Literals, or of a table's keys."""
    inner = get_args(expected)
    if get_origin(expected) in (tuple, dict):
        return _choices(inner[0])
    if get_origin(expected) in (Union, UnionType):
        return tuple(word for one in inner for word in _choices(one))
    return tuple(str(word) for word in inner) if inner and all(isinstance(word, str) for word in inner) else ()


def _describe_number(expected: object) -> str:
    """Return what to add to the choices of a type that also allows a number."""
    numbers = [one for one in get_args(expected) if get_origin(one) is Annotated and get_args(one)[0] is int]
    bounds = [(meta.ge, meta.le) for one in numbers for meta in get_args(one)[1:] if isinstance(meta, msgspec.Meta)]
    return f", or a whole number from {bounds[0][0]} to {bounds[0][1]}" if bounds else ""


def _list_choosing(value: object, expected: object) -> Iterable[object]:
    """Return those parts of a value that must be among the choices."""
    if get_origin(expected) is dict:
        return value if isinstance(value, dict) else ()
    return value if isinstance(value, list) and get_origin(expected) is tuple else (value,)


def _kind_of(value: object) -> str:
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "a table",
    }
    return names.get(type(value), "a date")

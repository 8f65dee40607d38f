"""Validate raw tables against the types of the settings, and note every problem with its place."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo

from dragoman.config.problems import Key, format_key, list_known, quote_choices, suggest
from dragoman.config.secret import SecretSource
from dragoman.config.tree import Tree

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


def read_section(tree: Tree, name: str, model: type[S]) -> S:
    """Return the settings of a top-level table; the defaults if it has problems, which are noted in the tree."""
    fields = read_fields(tree, (name,), model)
    return model() if fields is None else build_struct(model, fields)


def build_struct(model: type[S], fields: Mapping[str, object]) -> S:
    """Make a struct of fields that `read_fields` has checked."""
    return model(**fields)


def read_fields(
    tree: Tree, key: Key, model: type[Struct], internal: frozenset[str] = frozenset()
) -> dict[str, object] | None:
    """Check a table against the fields of a struct; None if it has problems, which are noted in the tree."""
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
        if name in table:
            fields[info.name] = _convert(tree, (*key, name), table[name], info)
        elif info.required:
            tree.problem(key, f'"{name}" is missing')
    return fields if len(tree.problems) == before else None


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
    choices = _choices(expected)
    if choices:
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str) and item not in choices:
                return f'expected one of {quote_choices(choices)}, got "{item}"{suggest(item, choices)}'
    message, _, where = message.partition(" - at `$")
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
    shown = msgspec.json.encode(value).decode() if not isinstance(value, float) else str(value)
    before, got, kind = message.partition(", got ")
    if isinstance(value, str):
        return f"{before}, got the string {shown}" if got and len(value) <= _SHOWN else message
    return f"{before}, got {shown}" if kind != "a string" else message


def _choices(expected: object) -> tuple[str, ...]:
    """Return the words that a type allows: those of a Literal, or of a tuple of Literals."""
    inner = get_args(expected)
    if get_origin(expected) is tuple:
        return _choices(inner[0])
    return tuple(str(word) for word in inner) if inner and all(isinstance(word, str) for word in inner) else ()


def _kind_of(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "a date")

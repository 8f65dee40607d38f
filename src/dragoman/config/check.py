"""The check: raw tables come in; settings of the right types go out, and every fault is noted with its place."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo

from dragoman.config.problems import Key, format_key, quote_choices, suggest
from dragoman.config.secret import SecretSource
from dragoman.config.tree import Tree

S = TypeVar("S", bound=Struct)

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
    """Make a struct of a top-level table; the defaults stand in for a faulty one, whose faults are then noted."""
    fields = read_fields(tree, (name,), model)
    return model() if fields is None else build_struct(model, fields)


def build_struct(model: type[S], fields: Mapping[str, object]) -> S:
    """Make a struct of fields that `read_fields` has checked."""
    return model(**fields)


def read_fields(
    tree: Tree, key: Key, model: type[Struct], ours: frozenset[str] = frozenset()
) -> dict[str, object] | None:
    """Check a table against a struct's fields; None when something is wrong, which the tree has then noted."""
    table = table_at(tree, key)
    if table is None:
        return None
    before = len(tree.problems)
    known = {info.encode_name: info for info in msgspec.structs.fields(model) if info.name not in ours}
    for name in table:
        if name not in known:
            tree.problem((*key, name), f"unknown key{suggest(name, list(known))}")
    fields: dict[str, object] = {}
    for name, info in known.items():
        if name in table:
            fields[info.name] = _convert(tree, (*key, name), table[name], info)
        elif info.required:
            tree.problem(key, f'"{name}" is missing')
    return fields if len(tree.problems) == before else None


def table_at(tree: Tree, key: Key) -> dict[str, object] | None:
    """Return the raw table at a path (an empty one if there is none), or None and a problem if it is no table."""
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
    """Make a path absolute: `~` is home, anything else relative is relative to who wrote it."""
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return base / text


def expand_source(source: SecretSource, base: Path, home: Path) -> SecretSource:
    """The same with its path made absolute, where it names one."""
    text = source.text
    if text.startswith("file:"):
        text = f"file:{expand(text.removeprefix('file:'), base, home)}"
    elif text.startswith("~/"):
        text = str(expand(text, base, home))
    return SecretSource(text, source.key, source.file, source.line)


def _convert(tree: Tree, key: Key, value: object, info: FieldInfo) -> object:
    def read_special(wanted: type, raw: object) -> object:
        if not isinstance(raw, str) or not raw.strip():
            raise ValueError("expected a string" if not isinstance(raw, str) else "must not be empty")
        origin = tree.origin(key)
        if wanted is Path:
            return Path(raw)
        return SecretSource(raw, format_key(key), origin.file, origin.line)

    try:
        return msgspec.convert(value, info.type, dec_hook=read_special)
    except msgspec.ValidationError as error:
        tree.problem(key, _explain(str(error), value, info.type))
        return None


def _explain(message: str, value: object, wanted: object) -> str:
    choices = _choices(wanted)
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
    return f"{message} (at {index})" if index.strip("[.]") else message


def _choices(wanted: object) -> tuple[str, ...]:
    """The words a type allows: those of a Literal, or of a tuple of Literals."""
    inner = get_args(wanted)
    if get_origin(wanted) is tuple:
        return _choices(inner[0])
    return tuple(str(word) for word in inner) if inner and all(isinstance(word, str) for word in inner) else ()


def _kind_of(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "a date")

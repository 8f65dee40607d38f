"""Change single settings in the text of a file that belongs to another program: JSON, TOML, YAML or an env file.

Everything else in the text stays. A text that cannot be read, or cannot be changed safely, is refused.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial

from msgspec import Struct

from dragoman.config.environment import parse_dotenv
from dragoman.operate.clients.jsonc import NotJson, read_jsonc, remove_members, set_members

YAML_KEY = re.compile(r"(?P<key>[A-Za-z_][\w.-]*)\s*:(?:\s+(?P<value>.*))?")
YAML_BLOCK = re.compile(r"[|>][+-]?\d?")

Settings = Mapping[str, object]
KeyPath = tuple[str, ...]
UNSAFE = "it is laid out in a way that cannot be changed safely"


class CannotMerge(Exception):
    """The file is left alone; the message says why."""


class SettingsFormat(Struct, frozen=True):
    """One kind of file. Its functions raise CannotMerge where that is not safe.

    The values of an env or YAML file are whole lines: `prepare` makes them from settings.
    """

    read: Callable[[str], dict[str, object]]  # a text -> its values
    merge: Callable[[str, Settings], str]  # a text, prepared settings -> the new text
    remove: Callable[[str, Sequence[KeyPath]], str]  # what is not there is skipped
    prepare: Callable[[Settings], Settings] = lambda settings: settings


def read_json_object(text: str) -> dict[str, object]:
    """Return the object in a text of JSON, with or without comments; raise CannotMerge if there is none."""
    try:
        values = read_jsonc(text).value if text.strip() else {}
    except NotJson as error:
        raise CannotMerge(f"it is not valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise CannotMerge("it is not a JSON object")
    return values


def merge_json(text: str, settings: Settings) -> str:
    """Change single members only, so that comments and layout stay; the result is parsed again and compared."""
    values = read_json_object(text)
    expected = _overlay(values, settings)
    return text if expected == values else _edit_json(expected, lambda: set_members(text, settings))


def remove_json(text: str, paths: Sequence[KeyPath]) -> str:
    """Remove single members; the result is parsed again and compared."""
    values = read_json_object(text)
    expected = _without(values, paths)
    return text if expected == values else _edit_json(expected, lambda: remove_members(text, paths))


def _edit_json(expected: Settings, edit: Callable[[], str]) -> str:
    try:
        edited = edit()
        is_right = read_jsonc(edited).value == expected
    except NotJson:
        is_right = False
    if not is_right:
        raise CannotMerge(UNSAFE)
    return edited


def read_toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CannotMerge(f"it is not valid TOML ({error})") from error


def merge_toml(text: str, settings: Settings) -> str:
    """Change single keys only, so that comments and layout stay; the result is parsed again and compared."""
    values = read_toml(text)
    expected = _overlay(values, settings)
    if expected == values:
        return text
    from dragoman.operate.configuration.toml_edit import set_keys  # with tomlkit, a tenth of a second

    return _edit_toml(expected, partial(set_keys, text, settings))


def remove_toml(text: str, paths: Sequence[KeyPath]) -> str:
    """Remove keys and tables with their sub-tables; the result is parsed again and compared."""
    values = read_toml(text)
    expected = _without(values, paths)
    if expected == values:
        return text
    from dragoman.operate.configuration.toml_edit import remove_keys  # with tomlkit

    return _edit_toml(expected, partial(remove_keys, text, paths))


def _edit_toml(expected: Settings, edit: Callable[[], str]) -> str:
    from dragoman.operate.configuration.toml_edit import CannotEdit  # with tomlkit

    try:
        edited = edit()
        is_right = _drop_empty_tables(tomllib.loads(edited)) == _drop_empty_tables(expected)
    except CannotEdit as error:
        raise CannotMerge(str(error)) from error
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise CannotMerge(UNSAFE)
    return edited


def _drop_empty_tables(values: Settings) -> dict[str, object]:
    """Return the values without empty tables: TOML need not write the table above another one."""
    kept = ((key, _drop_empty_tables(value) if isinstance(value, dict) else value) for key, value in values.items())
    return {key: value for key, value in kept if value != {}}


def merge_yaml(text: str, settings: Settings) -> str:
    """Change only `key: value` lines at the top level."""
    lines = text.splitlines()
    _check_yaml(lines)
    for key, line in settings.items():
        at = list(_find_yaml(lines, key))
        if len(at) > 1:
            raise CannotMerge(f"it sets {key} twice")
        if not at:
            lines.append(str(line))
            continue
        _check_plain(lines, at[0])
        lines[at[0]] = str(line)
    return _join(lines)


def remove_yaml(text: str, paths: Sequence[KeyPath]) -> str:
    lines = text.splitlines()
    _check_yaml(lines)
    at = [index for path in paths for index in _find_yaml(lines, path[0])]
    for index in at:
        _check_plain(lines, index)
    return _join(line for index, line in enumerate(lines) if index not in at)


def read_yaml(text: str) -> dict[str, object]:
    """Return the lines at the top level by their keys."""
    lines = text.splitlines()
    _check_yaml(lines)
    return {found["key"]: line for line in lines if (found := YAML_KEY.fullmatch(line))}


def _find_yaml(lines: Sequence[str], key: str) -> Iterator[int]:
    return (index for index, line in enumerate(lines) if (found := YAML_KEY.fullmatch(line)) and found["key"] == key)


def _check_yaml(lines: Sequence[str]) -> None:
    for number, line in enumerate(lines, start=1):
        if line.startswith(("{", "[", "- ")):
            raise CannotMerge("it is YAML, but not a table of keys")
        top_level = line.strip() and not line.startswith((" ", "#"))
        if top_level and not (YAML_KEY.fullmatch(line) or (number == 1 and line.strip() == "---")):
            raise CannotMerge(f"line {number} is not `key: value`")


def _check_plain(lines: Sequence[str], at: int) -> None:
    following = lines[at + 1] if at + 1 < len(lines) else ""
    found = YAML_KEY.fullmatch(lines[at])
    value = (found["value"] if found else None) or ""
    if following.startswith((" ", "- ")) and (not value or YAML_BLOCK.match(value)):
        raise CannotMerge(f"line {at + 1} sets a value of several lines")


def merge_env(text: str, settings: Settings) -> str:
    lines = text.splitlines()
    for name, line in settings.items():
        at = [index for index, old in enumerate(lines) if name in parse_dotenv(old)]
        for index in at:
            lines[index] = str(line)
        if not at:
            lines.append(str(line))
    return _join(lines)


def remove_env(text: str, paths: Sequence[KeyPath]) -> str:
    names = {path[0] for path in paths}
    return _join(line for line in text.splitlines() if names.isdisjoint(parse_dotenv(line)))


def read_env(text: str) -> dict[str, object]:
    """Return the lines by the names that they set."""
    return {name: line for line in text.splitlines() for name in parse_dotenv(line)}


def _join(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _overlay(values: dict[str, object], settings: Settings) -> dict[str, object]:
    merged = deepcopy(values)
    for key, value in settings.items():
        if not isinstance(value, Mapping):
            merged[key] = value
            continue
        inner = merged.get(key, {})
        if not isinstance(inner, dict):
            raise CannotMerge(f'"{key}" in it is not a table')
        merged[key] = _overlay(inner, value)
    return merged


def _without(values: dict[str, object], paths: Sequence[KeyPath]) -> dict[str, object]:
    remaining = deepcopy(values)
    for path in paths:
        table: object = remaining
        for key in path[:-1]:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table.pop(path[-1], None)
    return remaining


JSON = SettingsFormat(read_json_object, merge_json, remove_json)
TOML = SettingsFormat(read_toml, merge_toml, remove_toml)
YAML = SettingsFormat(
    read_yaml,
    merge_yaml,
    remove_yaml,
    prepare=lambda settings: {key: f"{key}: {value}" for key, value in settings.items()},
)
ENV = SettingsFormat(
    read_env,
    merge_env,
    remove_env,
    prepare=lambda settings: {name: f"{name}={value}" for name, value in settings.items()},
)

"""The text of a settings file and some settings come in; the same text with those settings goes out.

Whatever else is in the file stays. A text that cannot be read, or cannot be changed safely, is refused.
"""

import re
import tomllib
from collections.abc import Mapping
from copy import deepcopy

import msgspec

from dragoman.config import parse_dotenv
from dragoman.config.lines import key_lines

Settings = Mapping[str, object]

YAML_KEY = re.compile(r"(?P<key>[A-Za-z_][\w.-]*)\s*:(?:\s+(?P<value>.*))?")
YAML_BLOCK = re.compile(r"[|>][+-]?\d?")


class CannotMerge(Exception):
    """The file is left alone; says why."""


def merge_json(text: str, settings: Settings) -> str:
    try:
        values = msgspec.json.decode(text) if text.strip() else {}
    except msgspec.MsgspecError as error:
        raise CannotMerge(f"it is not plain JSON ({error})") from error
    if not isinstance(values, dict):
        raise CannotMerge("it holds no JSON object")
    merged = _laid_over(values, settings)
    if merged == values:
        return text
    found = re.search(r"\n( +|\t)\"", text)
    indent = 2 if found is None or found[1] == "\t" else len(found[1])
    return msgspec.json.format(msgspec.json.encode(merged), indent=indent).decode() + "\n"


def merge_toml(text: str, settings: Settings) -> str:
    """Changes single lines only, so that comments and layout stay; the result is read again and compared."""
    wanted = _laid_over(_toml(text), settings)
    lines = text.splitlines()
    for key, value in settings.items():
        if isinstance(value, Mapping):
            for name, fields in value.items():
                assert isinstance(fields, Mapping)
                lines = _with_table(lines, (key, str(name)), fields)
        else:
            lines = _with_key(lines, (key,), value, at=0)
    merged = "\n".join(lines) + "\n"
    try:
        right = tomllib.loads(merged) == wanted
    except tomllib.TOMLDecodeError:
        right = False
    if not right:
        raise CannotMerge("it is laid out in a way that cannot be changed safely")
    return text if merged.rstrip("\n") == text.rstrip("\n") else merged


def merge_yaml(text: str, settings: Settings) -> str:
    """Only `key: value` lines at the top level are touched."""
    lines = text.splitlines()
    _check_yaml(lines)
    for key, value in settings.items():
        line = f"{key}: {value}"
        at = [index for index, old in enumerate(lines) if (found := YAML_KEY.fullmatch(old)) and found["key"] == key]
        if len(at) > 1:
            raise CannotMerge(f"it sets {key} twice")
        if not at:
            lines.append(line)
            continue
        _check_plain(lines, at[0])
        lines[at[0]] = line
    return "\n".join(lines) + "\n"


def merge_env(text: str, settings: Settings) -> str:
    lines = text.splitlines()
    for name, value in settings.items():
        line = f"{name}={value}"
        at = [index for index, old in enumerate(lines) if name in parse_dotenv(old)]
        for index in at:
            lines[index] = line
        if not at:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _laid_over(values: dict[str, object], settings: Settings) -> dict[str, object]:
    merged = deepcopy(values)
    for key, value in settings.items():
        if not isinstance(value, Mapping):
            merged[key] = value
            continue
        inner = merged.get(key, {})
        if not isinstance(inner, dict):
            raise CannotMerge(f'"{key}" in it is not a table')
        merged[key] = _laid_over(inner, value)
    return merged


def _toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CannotMerge(f"it is not valid TOML ({error})") from error


def _with_table(lines: list[str], table: tuple[str, str], fields: Settings) -> list[str]:
    header = f"[{table[0]}.{table[1]}]"
    at = next((index for index, line in enumerate(lines) if line.partition("#")[0].strip() == header), None)
    if at is None:
        gap = [""] if lines and lines[-1].strip() else []
        return [*lines, *gap, header, *(f"{name} = {_toml_value(value)}" for name, value in fields.items())]
    for name, value in fields.items():
        lines = _with_key(lines, (*table, name), value, at=at + 1)
    return lines


def _with_key(lines: list[str], key: tuple[str, ...], value: object, *, at: int) -> list[str]:
    """Replaces the line that sets the key, or puts one in at the given place."""
    line = f"{key[-1]} = {_toml_value(value)}"
    number = key_lines("\n".join(lines)).get(key)
    if number is None:
        return [*lines[:at], line, *lines[at:]]
    old = lines[number - 1]
    try:
        unchanged = tomllib.loads(old) == {key[-1]: value}
    except tomllib.TOMLDecodeError:
        unchanged = False
    return lines if unchanged else [*lines[: number - 1], line, *lines[number:]]


def _toml_value(value: object) -> str:
    """TOML's strings are JSON's, as far as addresses and names go."""
    return msgspec.json.encode(value).decode()


def _check_yaml(lines: list[str]) -> None:
    for number, line in enumerate(lines, start=1):
        if line.startswith(("{", "[", "- ")):
            raise CannotMerge("it is YAML, but not a table of keys")
        top_level = line.strip() and not line.startswith((" ", "#"))
        if top_level and not (YAML_KEY.fullmatch(line) or (number == 1 and line.strip() == "---")):
            raise CannotMerge(f"line {number} is no `key: value`")


def _check_plain(lines: list[str], at: int) -> None:
    following = lines[at + 1] if at + 1 < len(lines) else ""
    found = YAML_KEY.fullmatch(lines[at])
    value = (found["value"] if found else None) or ""
    if following.startswith((" ", "- ")) and (not value or YAML_BLOCK.match(value)):
        raise CannotMerge(f"line {at + 1} sets a value of several lines")

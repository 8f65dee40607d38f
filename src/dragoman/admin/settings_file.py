"""Change single settings in a file that belongs to the user: merge, show the difference, back up, replace, undo.

Everything else in the file stays. A file that cannot be read, or cannot be changed safely, is left alone.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.admin.jsonc import NotJson, read_jsonc, set_members
from dragoman.config import parse_dotenv
from dragoman.config.tree import key_lines
from dragoman.framing.redaction import MASK, redact

OTHERS_KEY = re.compile(
    r"""(?P<before>\w*(?:key|token|secret|password)["']?\s*[:=]\s*["']?)(?!DRAGOMAN_|\{env:|[$*])[^\s"',]{6,}""",
    re.IGNORECASE,
)
BACKUP_MARK = ".dragoman-backup-"
MAX_BYTES = 4 * 1024 * 1024
YAML_KEY = re.compile(r"(?P<key>[A-Za-z_][\w.-]*)\s*:(?:\s+(?P<value>.*))?")
TOML_HEADER = re.compile(r"\[\[?\s*([\w\"'. -]+?)\s*\]?\]")
YAML_BLOCK = re.compile(r"[|>][+-]?\d?")

Settings = Mapping[str, object]
Merge = Callable[[str, Settings], str]


class CannotMerge(Exception):
    """The file is left alone; the message says why."""


class FileEdit(Struct, frozen=True):
    """A change of a file that has not been made yet; `old` is None where there is no file."""

    path: Path
    old: str | None
    new: str

    @property
    def is_change(self) -> bool:
        return self.new != self.old

    def diff(self) -> str:
        """Return a unified diff; keys of other tools that stand nearby are masked."""
        import difflib  # only for a diff: `serve` uses this module too

        old, new = (self.old or "").splitlines(), self.new.splitlines()
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), "before", "after", lineterm="")
        return OTHERS_KEY.sub(rf"\g<before>{MASK}", redact("\n".join(lines)))

    def apply(self) -> Path:
        """Back up the file, replace it, and return the backup; an empty backup means that there was no file."""
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        backup = self.path.with_name(f"{self.path.name}{BACKUP_MARK}{time}")
        _replace(backup, self.old or "", 0o600)
        _replace(self.path, self.new, _mode_of(self.path))
        return backup

    def create(self) -> None:
        """Write a file that does not exist yet."""
        _replace(self.path, self.new, _mode_of(self.path))


def plan_edit(path: Path, merge: Merge, settings: Settings) -> FileEdit:
    """Merge settings into a file's text; raise CannotMerge where that is not safe."""
    old = read_text(path)
    return FileEdit(path, old, merge(old or "", settings))


def read_text(path: Path) -> str | None:
    """Return the text of a settings file; None if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) > MAX_BYTES:
        raise CannotMerge("it is too large for a settings file")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CannotMerge("it is not UTF-8 text") from error


def undo_newest(path: Path) -> Path | None:
    """Restore the newest backup of a file and return it; None if there is none. The next older one is then newest."""
    backups = sorted(path.parent.glob(f"{path.name}{BACKUP_MARK}*")) if path.parent.is_dir() else []
    if not backups:
        return None
    text = read_text(backups[-1])
    if text:
        _replace(path, text, _mode_of(path))
    else:
        path.unlink(missing_ok=True)
    backups[-1].unlink()
    return backups[-1]


def merge_json(text: str, settings: Settings) -> str:
    """Change single members only, so that comments and layout stay; the result is parsed again and compared."""
    values = read_json_object(text)
    expected = _overlay(values, settings)
    if expected == values:
        return text
    try:
        merged = set_members(text, settings)
        is_right = read_jsonc(merged).value == expected
    except NotJson:
        is_right = False
    if not is_right:
        raise CannotMerge("it is laid out in a way that cannot be changed safely")
    return merged


def read_json_object(text: str) -> dict[str, object]:
    """Return the object in a text of JSON, with or without comments; raise CannotMerge if there is none."""
    try:
        values = read_jsonc(text).value if text.strip() else {}
    except NotJson as error:
        raise CannotMerge(f"it is not valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise CannotMerge("it is not a JSON object")
    return values


def merge_toml(text: str, settings: Settings) -> str:
    """Change single lines only, so that comments and layout stay; the result is parsed again and compared."""
    expected = _overlay(_parse_toml(text), settings)
    lines = text.splitlines()
    for key, value in settings.items():
        if isinstance(value, Mapping):
            for name, fields in value.items():
                assert isinstance(fields, Mapping)
                lines = _set_table(lines, (key, str(name)), fields)
        else:
            lines = _set_key(lines, (key,), value, at=0)
    merged = "\n".join(lines) + "\n"
    try:
        is_right = tomllib.loads(merged) == expected
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise CannotMerge("it is laid out in a way that cannot be changed safely")
    return text if merged.rstrip("\n") == text.rstrip("\n") else merged


def remove_toml_table(text: str, tables: Settings) -> str:
    """Remove `[section.name]` and its sub-tables; the result is parsed again and compared."""
    expected = _parse_toml(text)
    lines = text.splitlines()
    for section, names in tables.items():
        assert isinstance(names, Mapping)
        for name in names:
            lines = _remove_table(lines, f"{section}.{name}")
            entries = expected.get(section)
            if isinstance(entries, dict):
                entries.pop(name, None)
                expected = expected if entries else {key: value for key, value in expected.items() if key != section}
    remaining = "\n".join(lines).rstrip("\n") + "\n"
    try:
        is_right = tomllib.loads(remaining) == expected
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise CannotMerge("it is laid out in a way that cannot be changed safely")
    return remaining


def _remove_table(lines: list[str], table: str) -> list[str]:
    """Remove the lines of a table, and the comments that stand directly above its header."""
    kept: list[str] = []
    comments: list[str] = []  # directly above the present line
    is_inside = False
    for line in lines:
        if line.startswith("#"):
            comments.append(line)
            continue
        header = TOML_HEADER.fullmatch(line.partition("#")[0].strip())
        if header is not None:
            name = header[1].replace('"', "")
            is_inside = name == table or name.startswith(f"{table}.")
        if not is_inside:
            kept += [*comments, line]
        comments = []
    return [*kept, *comments]


def merge_yaml(text: str, settings: Settings) -> str:
    """Change only `key: value` lines at the top level."""
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


def _parse_toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CannotMerge(f"it is not valid TOML ({error})") from error


def _set_table(lines: list[str], table: tuple[str, str], fields: Settings) -> list[str]:
    header = f"[{table[0]}.{table[1]}]"
    at = next((index for index, line in enumerate(lines) if line.partition("#")[0].strip() == header), None)
    if at is None:
        gap = [""] if lines and lines[-1].strip() else []
        return [*lines, *gap, header, *(f"{name} = {_format_toml(value)}" for name, value in fields.items())]
    for name, value in fields.items():
        lines = _set_key(lines, (*table, name), value, at=at + 1)
    return lines


def _set_key(lines: list[str], key: tuple[str, ...], value: object, *, at: int) -> list[str]:
    """Replace the line that sets the key, or insert one at the given index."""
    line = f"{key[-1]} = {_format_toml(value)}"
    number = key_lines("\n".join(lines)).get(key)
    if number is None:
        return [*lines[:at], line, *lines[at:]]
    old = lines[number - 1]
    try:
        is_unchanged = tomllib.loads(old) == {key[-1]: value}
    except tomllib.TOMLDecodeError:
        is_unchanged = False
    return lines if is_unchanged else [*lines[: number - 1], line, *lines[number:]]


def _format_toml(value: object) -> str:
    """Return a value as JSON, which is valid TOML for addresses and names."""
    return msgspec.json.encode(value).decode()


def _check_yaml(lines: list[str]) -> None:
    for number, line in enumerate(lines, start=1):
        if line.startswith(("{", "[", "- ")):
            raise CannotMerge("it is YAML, but not a table of keys")
        top_level = line.strip() and not line.startswith((" ", "#"))
        if top_level and not (YAML_KEY.fullmatch(line) or (number == 1 and line.strip() == "---")):
            raise CannotMerge(f"line {number} is not `key: value`")


def _check_plain(lines: list[str], at: int) -> None:
    following = lines[at + 1] if at + 1 < len(lines) else ""
    found = YAML_KEY.fullmatch(lines[at])
    value = (found["value"] if found else None) or ""
    if following.startswith((" ", "- ")) and (not value or YAML_BLOCK.match(value)):
        raise CannotMerge(f"line {at + 1} sets a value of several lines")


def _replace(path: Path, text: str, mode: int) -> None:
    """Replace a file in one step, so that readers see the old one or the new one. A symbolic link stays one."""
    path = path.resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    import tempfile  # 1 MB: `serve` uses this module too, and writes nothing

    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _mode_of(path: Path) -> int:
    """Return the mode of a file; a new one is readable by its owner alone."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return 0o600

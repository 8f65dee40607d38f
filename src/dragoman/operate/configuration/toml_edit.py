"""Change single keys of a TOML document, so that comments, order and layout of everything else stay.

It imports tomlkit, which takes a tenth of a second: import this module only where a file is about to be changed.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Table, Whitespace

START, END = "\x01", "\x02\n"  # no TOML document contains these control characters
# tomlkit moves tables of one section together if an array of tables stands between them.
SPLIT = "it has tables of one section before and after an array of tables"

KeyPath = tuple[str, ...]


class CannotEdit(Exception):
    """The document cannot be changed; the message says why."""


def set_keys(text: str, settings: Mapping[str, object]) -> str:
    """Set keys at any depth; tables that are missing are added. Raises CannotEdit."""
    document = _parse(text)
    if document.as_string() != text:
        # Append tables of which the document has none yet.
        if any(not path or _find(document, path) is not None for path in _list_tables(settings)):
            raise CannotEdit(SPLIT)
        return f"{text.rstrip()}\n\n{tomlkit.dumps(settings)}"
    try:
        _set_keys(document, settings)
        return _separate_new_tables(document.as_string(), text)
    except (TOMLKitError, TypeError, ValueError) as error:
        raise CannotEdit(str(error)) from error


def remove_keys(text: str, paths: Sequence[KeyPath]) -> str:
    """Remove keys and tables that are there; a table goes with the comment directly above it. Raises CannotEdit."""
    for path in paths:
        document = _parse(text)
        parent = _find(document, path[:-1])
        if not isinstance(parent, MutableMapping) or path[-1] not in parent:
            continue
        if document.as_string() != text:
            raise CannotEdit(SPLIT)
        found: object = parent[path[-1]]
        if isinstance(found, Table) and not found.is_super_table():
            text = _cut_table(document, found)
            continue
        try:
            del parent[path[-1]]
        except TOMLKitError as error:
            raise CannotEdit(str(error)) from error
        text = document.as_string()
    return text


def _parse(text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise CannotEdit(str(error)) from error


def _list_tables(settings: Mapping[str, object]) -> Iterator[KeyPath]:
    """Yield the paths of tables that have values, () for values at the top."""
    if any(not isinstance(value, Mapping) for value in settings.values()):
        yield ()
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from ((key, *path) for path in _list_tables(value))


def _set_keys(table: MutableMapping[str, object], settings: Mapping[str, object]) -> None:
    for key, value in settings.items():
        if not isinstance(value, Mapping):
            if key not in table or table[key] != value:
                table[key] = value
            continue
        if key not in table:
            table[key] = _make_table(table, value)
        inner = table[key]
        if not isinstance(inner, MutableMapping):
            raise CannotEdit(f'"{key}" in it is not a table')
        _set_keys(inner, value)


def _make_table(parent: object, settings: Mapping[str, object]) -> Table | InlineTable:
    """Return an empty table; one that will have only tables gets no header of its own."""
    if isinstance(parent, InlineTable):
        return tomlkit.inline_table()
    return tomlkit.table(is_super_table=all(isinstance(value, Mapping) for value in settings.values()))


def _separate_new_tables(text: str, old: str) -> str:
    """Return the text with a blank line before and after each table that was added."""
    known = set(old.split("\n"))
    lines: list[str] = []
    for line in text.split("\n"):
        last = lines[-1] if lines else ""
        is_boundary = line.startswith("[") and (line not in known or last not in known)
        if is_boundary and last.strip() and not last.startswith("#"):
            lines.append("\r" if last.endswith("\r") else "")
        lines.append(line)
    return "\n".join(lines)


def _find(document: tomlkit.TOMLDocument, path: KeyPath) -> object:
    """Return what stands at a path; None if there is nothing."""
    found: object = document
    for key in path:
        if not isinstance(found, MutableMapping) or key not in found:
            return None
        found = found[key]
    return found


def _cut_table(document: tomlkit.TOMLDocument, table: Table) -> str:
    """Remove a table with its sub-tables. A comment directly above a header belongs to that header."""
    table.trivia.indent = START
    table.value.body.append((None, Whitespace(END)))
    before, _, rest = document.as_string().partition(START)
    inside, end, after = rest.partition(END)
    if not end:
        raise CannotEdit("parts of a table are in several places in it")
    above, below = _split_last_comment(before)[0], _split_last_comment(inside)[1]
    return (above if below or after else f"{above.rstrip()}\n".lstrip()) + below + after


def _split_last_comment(text: str) -> tuple[str, str]:
    """Return the text before the comment lines at its end, and these lines."""
    lines = text.splitlines(keepends=True)
    at = len(lines)
    while at and lines[at - 1].startswith("#"):
        at -= 1
    return "".join(lines[:at]), "".join(lines[at:])

"""What `dragoman connect` has written into the settings of another program, so that exactly that can be taken back.

One small file beside the settings records every key with its value before and after. It is removed with the last of
them. What the user or the program has changed since then is left alone.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.operate.clients.settings_file import FileEdit, list_backups, plan_edit, read_text, replace_file
from dragoman.operate.clients.settings_format import CannotMerge, KeyPath, Settings, SettingsFormat

RECORD_MARK = ".dragoman-written.json"
EMPTY = ("", "{}")  # texts without any setting or comment, apart from spaces


class WrittenKey(Struct, frozen=True, omit_defaults=True):
    """One key; `before` has the value that stood there, and is empty where there was none."""

    path: KeyPath
    after: object
    before: tuple[object, ...] = ()


class Written(Struct, frozen=True):
    """All that was written into one file since the last undo."""

    changes: tuple[WrittenKey, ...]
    new_tables: tuple[KeyPath, ...]  # that were not there before
    digest: str  # of the text as it was written last
    original: str | None  # the text before the first write; None: there was no file
    is_ours_alone: bool = True  # the file was not changed otherwise between our writes


class Undo(Struct, frozen=True):
    """A change that takes our settings back and has not been made yet. `left` are keys that were changed since."""

    edit: FileEdit
    removes_file: bool
    left: tuple[KeyPath, ...] = ()

    def apply(self) -> None:
        """Change the file, and remove the record and the backups."""
        path = self.edit.path
        if self.removes_file:
            path.unlink(missing_ok=True)
        elif self.edit.is_change:
            replace_file(path, self.edit.new, path.stat().st_mode & 0o777)
        forget(path)


def plan_write(path: Path, format: SettingsFormat, settings: Settings) -> FileEdit:
    """Return the change that merges settings into a file; raise CannotMerge where that is not safe."""
    return plan_edit(path, lambda text: format.merge(text, format.prepare(settings)))


def write(edit: FileEdit, format: SettingsFormat, settings: Settings) -> Path | None:
    """Record what an edit changes, make it, and return the backup, None if there was no file."""
    written = _extend_record(read_record(edit.path), edit, format, format.prepare(settings))
    record = msgspec.json.format(msgspec.json.encode(written), indent=1).decode() + "\n"
    replace_file(_record_path(edit.path), record, 0o600)
    return edit.apply()


def read_record(path: Path) -> Written | None:
    """Return what was written into a file; None if nothing was. Raises CannotMerge if the record cannot be read."""
    try:
        text = read_text(_record_path(path))
        return None if text is None else msgspec.json.decode(text, type=Written)
    except (CannotMerge, msgspec.MsgspecError) as error:
        raise CannotMerge(f"{_record_path(path)} cannot be read") from error


def plan_undo(path: Path, format: SettingsFormat) -> Undo | None:
    """Return the change that takes our settings back; None if there is no record. Raises CannotMerge."""
    written = read_record(path)
    if written is None:
        return None
    text = read_text(path)
    if text is None:
        return Undo(FileEdit(path, None, ""), removes_file=True)
    if written.is_ours_alone and _digest(text) == written.digest:
        return Undo(FileEdit(path, text, written.original or ""), removes_file=written.original is None)
    values = format.read(text)
    ours = [change for change in written.changes if find_value(values, change.path) == (change.after,)]
    left = [change for change in written.changes if change not in ours and _was_changed(values, change)]
    new = format.remove(text, [change.path for change in ours if not change.before or _is_table(change.before)])
    new = format.merge(new, nest((change.path, change.before[0]) for change in ours if change.before))
    new = _remove_empty_tables(new, format, written.new_tables)
    is_empty = written.original is None and "".join(new.split()) in EMPTY
    return Undo(FileEdit(path, text, "" if is_empty else new), is_empty, tuple(change.path for change in left))


def forget(path: Path) -> None:
    """Remove the record and the backups of a file."""
    for file in (_record_path(path), *list_backups(path)):
        file.unlink(missing_ok=True)


def find_value(values: Mapping[str, object], path: KeyPath) -> tuple[object, ...]:
    """Return the value at a path as a tuple of one; an empty one if there is none."""
    found: object = values
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return ()
        found = found[key]
    return (found,)


def list_leaves(settings: Settings, above: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Yield every value that is not a table, with its path."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from list_leaves(value, (*above, key))
        else:
            yield (*above, key), value


def nest(leaves: Iterable[tuple[KeyPath, object]]) -> dict[str, object]:
    """Return values as tables in tables; of two at one path, the last counts."""
    settings: dict[str, object] = {}
    for path, value in leaves:
        table = settings
        for key in path[:-1]:
            inner = table.setdefault(key, {})
            assert isinstance(inner, dict)
            table = inner
        table[path[-1]] = value
    return settings


def combine(settings: Settings, others: Settings) -> dict[str, object]:
    """Return both; where both have a value, that of the second."""
    return nest((*list_leaves(settings), *list_leaves(others)))


def choose_defaults(path: Path, format: SettingsFormat, defaults: Settings) -> dict[str, object]:
    """Return the defaults without those that a file sets already, unless with what we wrote. Raises CannotMerge."""
    values, written = format.read(read_text(path) or ""), read_record(path)
    ours = {change.path: (change.after,) for change in (written.changes if written else ())}
    prepared = dict(list_leaves(format.prepare(defaults)))
    return nest(
        (key, value)
        for key, value in list_leaves(defaults)
        if find_value(values, key) in ((), (prepared[key],), ours.get(key))
    )


def _extend_record(old: Written | None, edit: FileEdit, format: SettingsFormat, settings: Settings) -> Written:
    values = format.read(edit.old or "")
    changes = {change.path: change for change in (old.changes if old else ())}
    for path, value in list_leaves(settings):
        present = find_value(values, path)
        earlier = changes.get(path)
        is_ours = earlier is not None and present == (earlier.after,)
        changes[path] = WrittenKey(path, value, earlier.before if earlier is not None and is_ours else present)
    tables = dict.fromkeys(old.new_tables if old else ())
    for path, _ in list_leaves(settings):
        tables |= dict.fromkeys(path[:end] for end in range(1, len(path)) if not find_value(values, path[:end]))
    return Written(
        changes=tuple(changes.values()),
        new_tables=tuple(tables),
        digest=_digest(edit.new),
        original=old.original if old else edit.old,
        is_ours_alone=old is None or (old.is_ours_alone and _digest(edit.old or "") == old.digest),
    )


def _was_changed(values: Mapping[str, object], change: WrittenKey) -> bool:
    """Return whether a key that no longer has our value also differs from what was there before."""
    return find_value(values, change.path) not in ((), change.before)


def _is_table(before: tuple[object, ...]) -> bool:
    return any(isinstance(value, Mapping) for value in before)


def _remove_empty_tables(text: str, format: SettingsFormat, tables: Sequence[KeyPath]) -> str:
    for path in sorted(tables, key=len, reverse=True):
        if find_value(format.read(text), path) == ({},):
            text = format.remove(text, [path])
    return text


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}{RECORD_MARK}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

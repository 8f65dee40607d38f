"""A configuration of another gateway as a tree of values, and what became of each of its fields.

A reader records every field that it uses or leaves out; `Report.finish` adds all that was not recorded, so that
no field is lost without a word.
"""

import math
import re
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from dragoman.operate import InvalidArgument

MAX_FIELDS = 100_000  # references in YAML can make very many of a few
FieldPath = tuple[str | int, ...]
UNKNOWN = "dragoman has no such setting"
UNSET = "it is empty"


class Field(Struct, frozen=True):
    """A field of the other configuration: the setting that it became, or why there is none. One may have both."""

    path: str
    setting: str
    reason: str


class Report:
    """What became of the fields, in the order in which they were read."""

    def __init__(self) -> None:
        self._fields: dict[FieldPath, Field] = {}

    def record(self, path: FieldPath, setting: str, reason: str) -> None:
        self._fields[path] = Field(format_path(path), setting, reason)

    def finish(self, document: object) -> tuple[Field, ...]:
        """Return all fields; those that were not recorded, nor anything around them, have no setting."""
        leaves = list(islice(_list_leaves(document, ()), MAX_FIELDS + 1))
        if len(leaves) > MAX_FIELDS:
            raise InvalidArgument(f"The file has more than {MAX_FIELDS} fields.")
        for path, value in leaves:
            if not any(path[:length] in self._fields for length in range(1, len(path) + 1)):
                self.record(path, "", UNSET if value in (None, "", [], {}) else UNKNOWN)
        return tuple(self._fields.values())

    def reject(self, setting: str, reason: str) -> None:
        """Record that what became this setting is left out after all."""
        for path, field in self._fields.items():
            if field.setting in (setting, re.sub(r"^providers\.[^.]+\.", "providers.*.", setting)):
                self._fields[path] = Field(field.path, "", reason)


class SourceValue:
    """A value in the document and the path that leads to it. A place that does not exist has the value None."""

    __slots__ = ("path", "report", "value")

    def __init__(self, value: object, report: Report, path: FieldPath = ()) -> None:
        self.value = value
        self.report = report
        self.path = path

    def __bool__(self) -> bool:
        """Return whether something is set here: an empty text, list or table counts as nothing."""
        return self.value is not None and self.value not in ("", [], {})

    def __str__(self) -> str:
        return format_path(self.path)

    def at(self, *keys: str) -> "SourceValue":
        """Return the place of the first of these keys that is set."""
        table = self.value if isinstance(self.value, dict) else {}
        key = next((key for key in keys if table.get(key) not in (None, "")), keys[0])
        return SourceValue(table.get(key), self.report, (*self.path, key))

    def elements(self) -> "list[SourceValue]":
        """Return the places of a list; one value stands for a list of one."""
        if not isinstance(self.value, list):
            return [self] if self else []
        return [SourceValue(value, self.report, (*self.path, index)) for index, value in enumerate(self.value)]

    def members(self) -> "dict[str, SourceValue]":
        table = self.value if isinstance(self.value, dict) else {}
        return {str(key): SourceValue(value, self.report, (*self.path, str(key))) for key, value in table.items()}

    def text(self) -> str:
        """Return the text of a text or number; empty for anything else."""
        is_text = isinstance(self.value, str | int | float) and not isinstance(self.value, bool)
        return str(self.value).strip() if is_text else ""

    def number(self) -> float | None:
        """Return the number, also of a text that is one; a whole number is an int."""
        try:
            number = float(self.text())
        except ValueError:
            return None
        if not math.isfinite(number):
            return None
        return int(number) if number.is_integer() else number

    def map(self, setting: str, reason: str = "") -> None:
        """Record which setting this became; `reason` is what differs."""
        if self.value is not None:
            self.report.record(self.path, setting, reason)

    def skip(self, reason: str) -> None:
        """Record that this, and all that is in it, is left out."""
        if self.value is not None:
            self.report.record(self.path, "", reason)


def format_path(path: FieldPath) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _list_leaves(value: object, path: FieldPath) -> Iterator[tuple[FieldPath, object]]:
    if isinstance(value, dict) and value:
        for key, member in value.items():
            yield from _list_leaves(member, (*path, str(key)))
    elif isinstance(value, list) and value:
        for index, element in enumerate(value):
            yield from _list_leaves(element, (*path, index))
    elif path:
        yield path, value

"""The rows that tabs show of one worker, and the changes that led to them.

A tab that was away for less than these changes reach back gets only what it missed.
"""

import secrets
from collections import deque
from collections.abc import Iterable, Mapping

from msgspec import Struct

MAX_CHANGES = 240  # a minute at four a second
MAX_CHANGED_ROWS = 20_000  # in all changes that are kept

Row = dict[str, object]


class Change(Struct, array_like=True):
    """What changed at once. A row that is new has all of its fields here."""

    number: int
    changed: dict[int, Row]  # by the number of the row
    gone: list[int]


class RowLog:
    """Rows by their number, and the last changes. `epoch` differs for each start of a worker."""

    def __init__(
        self, epoch: str = "", number: int = 0, rows: Mapping[int, Row] | None = None, changes: Iterable[Change] = ()
    ) -> None:
        self.epoch = epoch or secrets.token_hex(4)
        self.number = number  # of the last change
        self.rows: dict[int, Row] = dict(rows or {})
        self._changes = deque(changes)
        self._kept_rows = sum(len(change.changed) for change in self._changes)

    def add(self, changed: dict[int, Row], gone: Iterable[int]) -> None:
        """Change rows, and remember that."""
        self.append(Change(self.number + 1, changed, list(gone)))

    def append(self, change: Change) -> None:
        """Make the change that comes after the last one."""
        for number, fields in change.changed.items():
            self.rows[number] = self.rows.get(number, {}) | fields
        for number in change.gone:
            self.rows.pop(number, None)
        self.number = change.number
        self._changes.append(change)
        self._kept_rows += len(change.changed)
        while len(self._changes) > MAX_CHANGES or (self._kept_rows > MAX_CHANGED_ROWS and len(self._changes) > 1):
            self._kept_rows -= len(self._changes.popleft().changed)

    def since(self, number: int) -> list[Change] | None:
        """Return the changes after the one with this number; None if some of them are not kept any more."""
        missing = self.number - number
        if missing < 0 or missing > len(self._changes):
            return None
        return [self._changes[place] for place in range(len(self._changes) - missing, len(self._changes))]

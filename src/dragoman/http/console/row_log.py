"""The rows that tabs show of one worker, and what changed when.

A tab that was away gets the rows that have changed since, as long as it is known which ones have gone.
"""

import secrets
from collections import deque
from collections.abc import Iterable, Mapping

from msgspec import Struct

MAX_RECENT = 4  # changes of which the changed fields are kept; of older ones it is only known which rows they concern
MAX_GONE = 5_000  # rows that have gone

Row = dict[str, object]


class Change(Struct, array_like=True):
    """What changed at once: whole rows, or some of their fields, by the number of the row."""

    number: int
    changed: dict[int, Row]
    gone: list[int]


class RowLog:
    """Rows by their number. `epoch` differs for each start of a worker; changes after the one `first` are known."""

    def __init__(self, epoch: str = "", first: int = 0, rows: Mapping[int, Row] | None = None) -> None:
        self.epoch = epoch or secrets.token_hex(4)
        self.number = self._first = first  # of the last change, and of the one before the first that is known
        self.rows: dict[int, Row] = dict(rows or {})
        self._changed_at: dict[int, int] = {}  # row -> number of its last change
        self._gone: deque[tuple[int, int]] = deque()  # number of the change, row
        self._recent: deque[Change] = deque(maxlen=MAX_RECENT)

    def add(self, changed: dict[int, Row], gone: Iterable[int]) -> None:
        """Change rows, and remember that."""
        self.append(Change(self.number + 1, changed, list(gone)))

    def append(self, change: Change) -> None:
        """Make the change that comes after the last one."""
        self.number = change.number
        self._recent.append(change)
        for row, fields in change.changed.items():
            self.rows[row] = self.rows.get(row, {}) | fields
            self._changed_at[row] = change.number
        for row in change.gone:
            self.rows.pop(row, None)
            self._changed_at.pop(row, None)
            self._gone.append((change.number, row))
        while len(self._gone) > MAX_GONE:
            self._first = self._gone.popleft()[0]

    def list_changes_since(self, number: int) -> list[Change] | None:
        """Return the changes after the one with this number, or one for all of them; None if they are not known."""
        if not self._first <= number <= self.number:
            return None
        if number == self.number:
            return []
        if number >= self._recent[0].number - 1:
            return [change for change in self._recent if change.number > number]
        changed = {row: self.rows[row] for row, at in self._changed_at.items() if at > number}
        return [Change(self.number, changed, [row for at, row in self._gone if at > number])]

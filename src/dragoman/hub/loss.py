"""The ledger: what a translation dropped, approximated or invented, each with a pointer to where it stood."""

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct

LISTED = 100  # losses with their place and reason; those beyond are only counted
LONGEST_PATH = 1024


class LossKind(Enum):
    DROPPED = "dropped"
    APPROXIMATED = "approximated"
    INVENTED = "invented"


class Loss(Struct, frozen=True):
    path: str  # JSON pointer into the client's request, or into the upstream's reply
    how: LossKind
    why: str


class Ledger:
    """Collects losses in the order in which they were met, each once; of more than `LISTED` the rest is only counted.

    What is dropped is not approximated as well, whichever was told first.
    """

    __slots__ = ("_counted", "_losses")

    def __init__(self) -> None:
        self._losses: dict[tuple[str, LossKind], Loss] = {}
        self._counted: dict[LossKind, set[int]] = {}  # hashes of the paths beyond those that are listed

    def note_dropped(self, path: str, why: str) -> None:
        self._add(path, LossKind.DROPPED, why)

    def note_approximated(self, path: str, why: str) -> None:
        self._add(path, LossKind.APPROXIMATED, why)

    def note_invented(self, path: str, why: str) -> None:
        self._add(path, LossKind.INVENTED, why)

    def _add(self, path: str, how: LossKind, why: str) -> None:
        if len(path) > LONGEST_PATH:
            path = path[:LONGEST_PATH] + "…"
        if how is LossKind.DROPPED:
            if self._losses.pop((path, LossKind.APPROXIMATED), None) is None and self._counted:
                self._counted.get(LossKind.APPROXIMATED, set()).discard(hash(path))
        elif how is LossKind.APPROXIMATED and self._has(path, LossKind.DROPPED):
            return
        if self._has(path, how):
            return
        if len(self._losses) < LISTED:
            self._losses[(path, how)] = Loss(path, how, why)
        else:
            self._counted.setdefault(how, set()).add(hash(path))

    def _has(self, path: str, how: LossKind) -> bool:
        return (path, how) in self._losses or hash(path) in self._counted.get(how, ())

    def copy(self) -> "Ledger":
        twin = Ledger()
        twin._losses = self._losses.copy()
        twin._counted = {how: paths.copy() for how, paths in self._counted.items()}
        return twin

    def count_by_kind(self) -> tuple[int, ...]:
        """LossKind many of each, in the order of LossKind."""
        told = [how for _, how in self._losses]
        return tuple(told.count(how) + len(self._counted.get(how, ())) for how in LossKind)

    def __iter__(self) -> Iterator[Loss]:
        """Those that are listed."""
        return iter(self._losses.values())

    def __len__(self) -> int:
        """LossKind many there are, listed or not."""
        return len(self._losses) + sum(map(len, self._counted.values()))

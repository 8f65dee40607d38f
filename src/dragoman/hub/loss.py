"""The ledger: what a translation dropped, approximated or invented, each with a pointer to where it stood."""

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct


class How(Enum):
    DROPPED = "dropped"
    APPROXIMATED = "approximated"
    INVENTED = "invented"


class Loss(Struct, frozen=True):
    path: str  # JSON pointer into the client's request, or into the upstream's reply
    how: How
    why: str


class Ledger:
    """Collects losses in the order in which they were met; the same loss is told once.

    What is dropped is not approximated as well, whichever was told first.
    """

    __slots__ = ("_losses",)

    def __init__(self) -> None:
        self._losses: dict[tuple[str, How], Loss] = {}

    def dropped(self, path: str, why: str) -> None:
        self._add(Loss(path, How.DROPPED, why))

    def approximated(self, path: str, why: str) -> None:
        self._add(Loss(path, How.APPROXIMATED, why))

    def invented(self, path: str, why: str) -> None:
        self._add(Loss(path, How.INVENTED, why))

    def _add(self, loss: Loss) -> None:
        if loss.how is How.DROPPED:
            self._losses.pop((loss.path, How.APPROXIMATED), None)
        elif loss.how is How.APPROXIMATED and (loss.path, How.DROPPED) in self._losses:
            return
        self._losses.setdefault((loss.path, loss.how), loss)

    def copy(self) -> "Ledger":
        twin = Ledger()
        twin._losses = self._losses.copy()
        return twin

    def by_how(self) -> tuple[int, ...]:
        """How many of each, in the order of How."""
        told = [how for _, how in self._losses]
        return tuple(told.count(how) for how in How)

    def __iter__(self) -> Iterator[Loss]:
        return iter(self._losses.values())

    def __len__(self) -> int:
        return len(self._losses)

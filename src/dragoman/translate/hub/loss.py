"""The loss ledger: what a translation dropped, approximated or invented, each with a JSON pointer."""

from collections.abc import Callable, Iterator
from enum import Enum

from msgspec import Struct

LISTED = 100  # losses kept with path and reason; further ones are only counted
LONGEST_PATH = 1024


class LossKind(Enum):
    DROPPED = "dropped"
    APPROXIMATED = "approximated"
    INVENTED = "invented"

    __hash__ = object.__hash__  # Enum's own is a Python function, and every loss is looked up by its kind


class Loss(Struct, frozen=True):
    path: str  # JSON pointer into the client's request, or into the upstream's reply
    how: LossKind
    why: str


_DROPPED, _APPROXIMATED, _INVENTED = LossKind  # looked up once: on Python 3.11, each look-up of a member is slow


class Ledger(Struct, eq=False):
    """Collect losses in order, each once. More than `LISTED` are only counted.

    A path that is dropped is not listed as approximated as well, in whichever order the two were noted.
    """

    # Translates the paths, where the request was rebuilt from a shorter one of the client.
    _locate: Callable[[str], str] | None = None
    _losses: dict[tuple[str, LossKind], Loss] = {}
    _counted: dict[LossKind, set[int]] = {}  # hashes of the paths beyond those that are listed
    _default: str | None = None  # path of the value that `record_default` has noted

    def record_dropped(self, path: str, why: str) -> None:
        self._add(path, _DROPPED, why)

    def record_approximated(self, path: str, why: str) -> None:
        self._add(path, _APPROXIMATED, why)

    def record_invented(self, path: str, why: str) -> None:
        self._add(path, _INVENTED, why)

    def record_default(self, path: str, why: str) -> None:
        """Note a value of the configuration as invented.

        What becomes of it later is no loss of the client's: if it is dropped, nothing was invented.
        """
        self.record_invented(path, why)
        self._default = path if self._locate is None else self._locate(path)

    def _add(self, path: str, how: LossKind, why: str) -> None:
        if self._locate is not None:
            path = self._locate(path)
        if path == self._default:
            if how is _DROPPED:
                self._losses.pop((path, _INVENTED), None)
            return
        if len(path) > LONGEST_PATH:
            path = path[:LONGEST_PATH] + "…"
        if how is _DROPPED:
            if self._losses.pop((path, _APPROXIMATED), None) is None and self._counted:
                self._counted.get(_APPROXIMATED, set()).discard(hash(path))
        elif how is _APPROXIMATED and self._has(path, _DROPPED):
            return
        if self._has(path, how):
            return
        if len(self._losses) < LISTED:
            self._losses[(path, how)] = Loss(path, how, why)
        else:
            self._counted.setdefault(how, set()).add(hash(path))

    def _has(self, path: str, how: LossKind) -> bool:
        if (path, how) in self._losses:
            return True
        return bool(self._counted) and hash(path) in self._counted.get(how, ())

    def close(self) -> None:
        """Release the request that the paths stand in; nothing more is noted."""
        self._locate = None

    def copy(self) -> "Ledger":
        counted = {how: paths.copy() for how, paths in self._counted.items()} if self._counted else {}
        return Ledger(self._locate, self._losses.copy(), counted, self._default)

    def count_by_kind(self) -> tuple[int, ...]:
        """Return the number of losses of each kind, in the order of LossKind."""
        listed = [how for _, how in self._losses]
        return tuple(
            listed.count(how) + len(self._counted.get(how, ())) for how in (_DROPPED, _APPROXIMATED, _INVENTED)
        )

    def __iter__(self) -> Iterator[Loss]:
        """Iterate over the listed losses."""
        return iter(self._losses.values())

    def __len__(self) -> int:
        """Return the number of all losses, listed or not."""
        listed = len(self._losses)
        return listed + sum(map(len, self._counted.values())) if self._counted else listed

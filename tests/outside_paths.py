"""Keep tests from opening what lies beside the checkout or in the developer's home: a clone elsewhere has neither."""

import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WATCHED = frozenset(("open", "os.listdir", "os.scandir"))
WRITING = os.O_CREAT | os.O_WRONLY | os.O_RDWR


class OutsidePathError(Exception):
    """A test opened what a clone does not contain."""


class Rules:
    """Which paths may be opened: the longest of the listed directories that contains a path decides."""

    def __init__(self, refused: Iterable[str | Path], allowed: Iterable[str | Path]) -> None:
        # The root of the file system contains everything, so that nothing can be said to lie beside it.
        by_prefix = {prefix: True for place in refused for prefix in _find_prefixes(place) if prefix != os.sep}
        by_prefix |= {prefix: False for place in allowed for prefix in _find_prefixes(place)}
        self._by_prefix = sorted(by_prefix.items(), key=lambda rule: -len(rule[0]))

    def refuse(self, path: str) -> bool:
        """Return True if the path must not be opened. Relative paths are, unless they climb."""
        if not path.startswith(os.sep) and not path.startswith(os.pardir):
            return False
        if os.pardir in path:
            path = os.path.abspath(path)
        place = path + os.sep
        return next((refused for prefix, refused in self._by_prefix if place.startswith(prefix)), False)


def _find_prefixes(place: str | Path) -> set[str]:
    return {name.rstrip(os.sep) + os.sep for name in (os.path.abspath(place), os.path.realpath(place))}


def make_rules(basetemp: str | None = None) -> Rules:
    """Return the rules for this checkout, this interpreter and this run's temporary directory."""
    home = Path.home()
    interpreter = (
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        *sysconfig.get_paths().values(),
        *filter(None, sys.path),
    )
    caches = (home / ".cache", home / "Library" / "Caches", site.getuserbase())
    return Rules(
        refused=(ROOT.parent, home),
        allowed=(ROOT, tempfile.gettempdir(), *([basetemp] if basetemp else []), *interpreter, *caches),
    )


class OutsidePathGuard:
    """Raises OutsidePathError where a refused path is opened, and remembers it, should the error be caught."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._opened: list[str] = []

    def install(self) -> None:
        """Watch every file and directory that this process opens from now on."""
        sys.addaudithook(self._check)

    def take_opened(self) -> list[str]:
        """Return what was opened since the last call."""
        opened, self._opened = self._opened, []
        return opened

    def _check(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in WATCHED:
            return
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], bytes) else arguments[0]
        if not isinstance(path, str) or not self.rules.refuse(path):
            return
        flags = arguments[2] if event == "open" else 0
        # Programs look for settings in many places; what is not there makes no difference.
        if os.path.exists(path) or (isinstance(flags, int) and flags & WRITING):
            path = os.path.abspath(path)
            self._opened.append(path)
            raise OutsidePathError(
                f"{path} is outside of the repository: tests read tests/fixtures and temporary files."
            )

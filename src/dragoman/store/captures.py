"""Captures come in and become files in one directory, bounded in number and size; they are found again by their ids."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from dragoman.observers.capture import Capture, Summary, Unreadable, pack, read, read_summary

SUFFIX = ".capture"
UNFINISHED = ".part"
LAST = "last"
MAX_SUMMARY_BYTES = 64 * 1024
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]")


class Unknown(Exception):
    """No capture, or more than one, is meant by that."""


class Kept(Struct, frozen=True):
    """A capture on disk."""

    file: Path
    size: int
    summary: Summary


class Captures:
    """The directory. Several processes may use it at the same time."""

    def __init__(self, directory: Path, keep: int, max_bytes: int) -> None:
        self.directory = directory
        self._keep = keep
        self._max_bytes = max_bytes

    def write(self, capture: Capture) -> Path:
        """Raises OSError; nothing half-written is left."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        moment = datetime.fromtimestamp(capture.began, UTC).strftime("%Y%m%dT%H%M%S.%f")
        file = self.directory / f"{moment}-{_NOT_IN_A_NAME.sub('_', capture.id)}{SUFFIX}"
        part = file.with_suffix(UNFINISHED)
        try:
            _write_new(part, pack(capture))
            part.replace(file)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self._prune()
        return file

    def files(self) -> list[Path]:
        """The oldest first: the names begin with the time."""
        try:
            return sorted(self.directory.glob(f"*{SUFFIX}"))
        except OSError:
            return []

    def listed(self) -> list[Kept]:
        """The oldest first; what cannot be read is left out."""
        kept = []
        for file in self.files():
            try:
                with file.open("rb") as opened:
                    line = opened.readline(MAX_SUMMARY_BYTES)
                kept.append(Kept(file, file.stat().st_size, read_summary(line)))
            except (OSError, Unreadable):
                continue
        return kept

    def find(self, which: str) -> Path:
        """The file of `last`, of an id, or of a part of one that fits no other; the newest of those with one id."""
        if which == LAST:
            files = self.files()
            if not files:
                raise Unknown(f"there are no captures in {self.directory}")
            return files[-1]
        kept = self.listed()
        found = [one for one in kept if one.summary.id == which]
        found = found or [one for one in kept if one.summary.id.startswith(which)]
        found = found or [one for one in kept if one.summary.id.endswith(which)]
        if not found:
            raise Unknown(f"no capture is called {which!r}; `dragoman capture list` shows all")
        if len({one.summary.id for one in found}) > 1:
            raise Unknown(f"{which!r} fits {len(found)} captures; give more of the id")
        return found[-1].file

    def _prune(self) -> None:
        """The oldest go first."""
        sizes = [(file, _size(file)) for file in self.files()]
        total = sum(size for _, size in sizes)
        for place, (file, size) in enumerate(sizes):
            if len(sizes) - place <= self._keep and total <= self._max_bytes:
                break
            file.unlink(missing_ok=True)
            total -= size


def load(file: Path) -> Capture:
    """Raises OSError or Unreadable."""
    return read(file.read_bytes())


def _write_new(file: Path, data: bytes) -> None:
    """Readable by its owner alone, from its first byte on."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        written = memoryview(data)
        while written:
            written = written[os.write(opened, written) :]
    finally:
        os.close(opened)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0

"""Captures come in and become files in one directory, bounded in number and size; they are found again by their ids."""

import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from dragoman.observers.capture import Capture, Summary, Unreadable, pack, read, read_summary

SUFFIX = ".capture"
UNFINISHED = ".part"
UNFINISHED_S = 3600.0
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


class Bounds(Struct, frozen=True):
    """How much is kept."""

    keep: int
    max_bytes: int
    max_age_s: float


class Captures:
    """The directory. Several processes may use it at the same time."""

    def __init__(self, directory: Path, bounds: Bounds) -> None:
        self.directory = directory
        self._bounds = bounds

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
        self.prune()
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

    def prune(self) -> None:
        """What is too old goes, then the oldest of what is too much; raises OSError."""
        bounds, now = self._bounds, time.time()
        for part in self.directory.glob(f"*{UNFINISHED}"):  # whoever wrote it was killed
            if now - _stamp(part)[0] > UNFINISHED_S:
                part.unlink(missing_ok=True)
        stamps = [(file, *_stamp(file)) for file in self.files()]
        total, count = sum(size for _, _, size in stamps), len(stamps)
        for file, written, size in stamps:
            if count <= bounds.keep and total <= bounds.max_bytes and now - written <= bounds.max_age_s:
                break
            file.unlink(missing_ok=True)
            total, count = total - size, count - 1


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


def _stamp(file: Path) -> tuple[float, int]:
    """When it was written, and its size; what is gone by now is new and small."""
    try:
        status = file.stat()
    except OSError:
        return time.time(), 0
    return status.st_mtime, status.st_size

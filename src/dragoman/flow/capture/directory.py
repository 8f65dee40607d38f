"""Captures come in and become files in one directory, bounded in number and size; they are found again by their ids."""

import os
import re
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from dragoman.config.settings import Debug
from dragoman.flow.capture.file_format import Unreadable, pack, read, read_summary
from dragoman.flow.capture.format import Capture, Summary

SUFFIX = ".capture"
UNFINISHED = ".part"
UNFINISHED_S = 3600.0
LOOK_AGAIN_S = 5.0
MANY = 1000
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


class Stamp(Struct, frozen=True):
    file: Path
    written: float
    size: int


class Captures:
    """The directory. Several processes may use it at the same time."""

    def __init__(self, directory: Path, bounds: Bounds) -> None:
        self.directory = directory
        self._bounds = bounds
        self._known: deque[Stamp] = deque()  # the oldest first
        self._looked_at = -LOOK_AGAIN_S

    def write(self, capture: Capture) -> Path:
        """Raises OSError; nothing half-written is left."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        moment = datetime.fromtimestamp(capture.started_at, UTC).strftime("%Y%m%dT%H%M%S.%f")
        file = self.directory / f"{moment}-{_NOT_IN_A_NAME.sub('_', capture.request_id)}{SUFFIX}"
        part = file.with_suffix(UNFINISHED)
        try:
            _write_new(part, pack(capture))
            part.replace(file)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self._known.append(_stamp(file))
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
        found = [one for one in kept if one.summary.request_id == which]
        found = found or [one for one in kept if one.summary.request_id.startswith(which)]
        found = found or [one for one in kept if one.summary.request_id.endswith(which)]
        if not found:
            raise Unknown(f"no capture is called {which!r}; `dragoman capture list` shows all")
        if len({one.summary.request_id for one in found}) > 1:
            raise Unknown(f"{which!r} fits {len(found)} captures; give more of the id")
        return found[-1].file

    def prune(self) -> None:
        """What is too old goes, then the oldest of what is too much; raises OSError."""
        if self._has_changed():
            self._looked_at = time.monotonic()
            self._known = deque(map(_stamp, self.files()))
            for part in self.directory.glob(f"*{UNFINISHED}"):  # whoever wrote it was killed
                if time.time() - _stamp(part).written > UNFINISHED_S:
                    part.unlink(missing_ok=True)
        total = sum(stamp.size for stamp in self._known)
        while self._known and self._is_too_much(total):
            stamp = self._known.popleft()
            stamp.file.unlink(missing_ok=True)
            total -= stamp.size

    def _has_changed(self) -> bool:
        """Others write here, too; to see that each time takes little, unless there are very many files."""
        if time.monotonic() - self._looked_at >= LOOK_AGAIN_S:
            return True
        if self._bounds.keep > MANY:
            return False
        names = {name for name in os.listdir(self.directory) if name.endswith(SUFFIX)}
        return names != {stamp.file.name for stamp in self._known}

    def _is_too_much(self, total: int) -> bool:
        bounds = self._bounds
        is_old = time.time() - self._known[0].written > bounds.max_age_s
        return is_old or len(self._known) > bounds.keep or total > bounds.max_bytes


def captures_of(debug: Debug) -> Captures:
    """Where the settings say, and as many as they say."""
    return Captures(debug.directory, Bounds(debug.keep, debug.max_bytes, debug.max_age_s))


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


def _stamp(file: Path) -> Stamp:
    """What is gone by now is new and small."""
    try:
        status = file.stat()
    except OSError:
        return Stamp(file, time.time(), 0)
    return Stamp(file, status.st_mtime, status.st_size)

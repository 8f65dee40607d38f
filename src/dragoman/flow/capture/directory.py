"""The directory of captures: written, listed and found by id, with bounds on number, size and age."""

import os
import re
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from dragoman.config.settings import Debug
from dragoman.flow.capture.file_format import UnreadableCapture, pack_capture, read_capture, read_summary
from dragoman.flow.capture.format import Capture, Summary

SUFFIX = ".capture"
UNFINISHED_SUFFIX = ".part"
UNFINISHED_MAX_AGE_S = 3600.0
RESCAN_S = 5.0
MAX_LISTED_EACH_TIME = 1000
LAST = "last"
MAX_SUMMARY_BYTES = 64 * 1024
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")


class CaptureNotFound(Exception):
    """No capture, or more than one, has such an id."""


class CaptureFile(Struct, frozen=True):
    """A capture on disk, with its summary."""

    file: Path
    size: int
    summary: Summary


class Bounds(Struct, frozen=True):
    """How many captures are kept, of which size, and for how long."""

    keep: int
    max_bytes: int
    max_age_s: float


class FileStatus(Struct, frozen=True):
    path: Path
    written_at: float
    size: int


class CaptureDirectory:
    """A directory of captures, which several processes may use at the same time."""

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self.path = path
        self._bounds = bounds
        self._known: deque[FileStatus] = deque()  # oldest first
        self._scanned_at = -RESCAN_S

    def write(self, capture: Capture) -> Path:
        """Write a capture and return its file; raises OSError and leaves no partial file."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        moment = datetime.fromtimestamp(capture.started_at, UTC).strftime("%Y%m%dT%H%M%S.%f")
        file = self.path / f"{moment}-{_UNSAFE_CHARACTERS.sub('_', capture.request_id)}{SUFFIX}"
        part = file.with_suffix(UNFINISHED_SUFFIX)
        try:
            _write_new(part, pack_capture(capture))
            part.replace(file)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self._known.append(_status(file))
        self.prune()
        return file

    def files(self) -> list[Path]:
        """Return all capture files, oldest first: their names begin with the time."""
        try:
            return sorted(self.path.glob(f"*{SUFFIX}"))
        except OSError:
            return []

    def list_captures(self) -> list[CaptureFile]:
        """Return all captures that can be read, oldest first."""
        found = []
        for file in self.files():
            try:
                with file.open("rb") as opened:
                    line = opened.readline(MAX_SUMMARY_BYTES)
                found.append(CaptureFile(file, file.stat().st_size, read_summary(line)))
            except (OSError, UnreadableCapture):
                continue
        return found

    def find_captured(self, request_ids: Iterable[str]) -> frozenset[str]:
        """Return those of the requests that have a capture, judged by the names of the files."""
        try:
            names = {name.partition("-")[2].removesuffix(SUFFIX) for name in os.listdir(self.path)}
        except OSError:
            return frozenset()
        return frozenset(id for id in request_ids if _UNSAFE_CHARACTERS.sub("_", id) in names)

    def find(self, which: str) -> Path:
        """Return the file of a capture: `last`, its id, or the beginning or end of its id.

        Of several captures with the same id the newest is returned. Raises CaptureNotFound.
        """
        if which == LAST:
            files = self.files()
            if not files:
                raise CaptureNotFound(f"There are no captures in {self.path}.")
            return files[-1]
        captures = self.list_captures()
        found = [capture for capture in captures if capture.summary.request_id == which]
        found = found or [capture for capture in captures if capture.summary.request_id.startswith(which)]
        found = found or [capture for capture in captures if capture.summary.request_id.endswith(which)]
        if not found:
            raise CaptureNotFound(f"There is no capture {which!r}. Run: dragoman capture list")
        if len({capture.summary.request_id for capture in found}) > 1:
            raise CaptureNotFound(f"{len(found)} captures match {which!r}. Give more of the id.")
        return found[-1].file

    def prune(self) -> None:
        """Remove captures that are too old, then the oldest until the bounds are met; raises OSError."""
        if self._has_changed():
            self._scanned_at = time.monotonic()
            self._known = deque(map(_status, self.files()))
            for part in self.path.glob(f"*{UNFINISHED_SUFFIX}"):  # its writer was killed
                if time.time() - _status(part).written_at > UNFINISHED_MAX_AGE_S:
                    part.unlink(missing_ok=True)
        total = sum(status.size for status in self._known)
        while self._known and self._exceeds_bounds(total):
            status = self._known.popleft()
            status.path.unlink(missing_ok=True)
            total -= status.size

    def _has_changed(self) -> bool:
        """Whether other processes may have written or removed files.

        The directory is listed each time unless it has very many files.
        """
        if time.monotonic() - self._scanned_at >= RESCAN_S:
            return True
        if self._bounds.keep > MAX_LISTED_EACH_TIME:
            return False
        names = {name for name in os.listdir(self.path) if name.endswith(SUFFIX)}
        return names != {status.path.name for status in self._known}

    def _exceeds_bounds(self, total: int) -> bool:
        bounds = self._bounds
        is_too_old = time.time() - self._known[0].written_at > bounds.max_age_s
        return is_too_old or len(self._known) > bounds.keep or total > bounds.max_bytes


def capture_directory(debug: Debug) -> CaptureDirectory:
    """Return the directory that the settings name, with their bounds."""
    return CaptureDirectory(debug.directory, Bounds(debug.keep, debug.max_bytes, debug.max_age_s))


def load_capture(file: Path) -> Capture:
    """Read a capture; raises OSError or UnreadableCapture."""
    return read_capture(file.read_bytes())


def _write_new(file: Path, data: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(opened, rest) :]
    finally:
        os.close(opened)


def _status(file: Path) -> FileStatus:
    """Return the status of a file; one that has been removed meanwhile counts as new and empty."""
    try:
        found = file.stat()
    except OSError:
        return FileStatus(file, time.time(), 0)
    return FileStatus(file, found.st_mtime, found.st_size)

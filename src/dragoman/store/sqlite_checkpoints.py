"""Checkpoints: they write the pages of the write-ahead log into the file of a SQLite database.

SQLite overwrites what is deleted (`secure_delete`), but not the copies that stay behind in the unused middle of a page
when rows are moved to another page. So a connection of its own writes the pages, and clears that part of them.

It calls Python for each page. So that the event loop goes on meanwhile, Python writes and syncs the files itself,
which releases the interpreter's lock; SQLite would hold it.
"""

import os
import sys
from collections import Counter
from pathlib import Path

import apsw

# No two threads use a connection at the same time, so that SQLite needs no lock for each value that is bound.
OPEN_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX
NAME = "dragoman"  # of the layer below SQLite
HEADERS = {2: 12, 5: 12, 10: 8, 13: 8}  # kinds of b-tree pages, and the lengths of their headers
FILE_HEADER = 100  # bytes, on the first page
LOCK_BYTE = 0x40000000  # the page with this byte is not used
# A page that is not part of a b-tree begins with the number of another page. That looks like a kind of b-tree page
# only in a file of 128 GB: pages of a file that may become so large are not cleared.
MAX_CLEARED_BYTES = 1 << 36
ZEROS = bytes(65_536)  # the largest page
sync = os.fdatasync if sys.platform == "linux" else os.fsync

Inode = tuple[int, int]  # device and number


class Descriptors:
    """Descriptors of databases' files, one for each.

    Closing any descriptor of a file drops all locks that this process has on it, those of SQLite's connections too,
    and another process might remove the log that they use. So one is closed only when no store uses the file.
    """

    def __init__(self) -> None:
        self._open: dict[str, dict[Inode, int]] = {}
        self._users: Counter[str] = Counter()

    def add_user(self, path: Path) -> None:
        self._users[os.path.realpath(path)] += 1

    def remove_user(self, path: Path) -> None:
        """Note that a store has closed all its connections."""
        name = os.path.realpath(path)
        self._users[name] -= 1
        if self._users[name] <= 0:
            del self._users[name]
            for descriptor in self._open.pop(name, {}).values():
                os.close(descriptor)

    def has_open(self, path: Path) -> bool:
        return bool(self._open.get(os.path.realpath(path)))

    def find(self, path: str) -> int:
        """Return the descriptor of the file that has this path now."""
        found = os.stat(path)
        opened = self._open.setdefault(os.path.realpath(path), {})
        inode = found.st_dev, found.st_ino
        if inode not in opened:
            opened[inode] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return opened[inode]


DESCRIPTORS = Descriptors()


class DatabaseFile(apsw.VFSFile):
    """The file of a database."""

    def __init__(self, name: str, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._descriptor = DESCRIPTORS.find(name)

    def xWrite(self, data: bytes, offset: int) -> None:
        if os.fstat(self._descriptor).st_size < MAX_CLEARED_BYTES:
            data = clear_unused(data, offset // len(data) + 1)
        written = os.pwrite(self._descriptor, data, offset)
        while written < len(data):  # the disk is nearly full: the next one raises OSError
            written += os.pwrite(self._descriptor, data[written:], offset + written)

    def xSync(self, flags: int) -> None:
        sync(self._descriptor)


class LogFile(apsw.VFSFile):
    """The write-ahead log. Nothing is locked in it."""

    def __init__(self, name: str, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)

    def xSync(self, flags: int) -> None:
        sync(self._descriptor)

    def xClose(self) -> None:
        os.close(self._descriptor)
        super().xClose()


class Files(apsw.VFS):
    """SQLite's files, but for the pages that are written into a database."""

    def __init__(self) -> None:
        super().__init__(NAME, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path and flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            return DatabaseFile(path, flags)
        if path and flags[0] & apsw.SQLITE_OPEN_WAL:
            return LogFile(path, flags)
        return super().xOpen(name, flags)


FILES = Files()  # SQLite knows it as long as it exists


def connect_checkpointer(path: Path) -> apsw.Connection:
    """Open a connection whose checkpoints clear what is unused. The file has the current schema."""
    connection = apsw.Connection(str(path), flags=OPEN_FLAGS, vfs=NAME)
    connection.pragma("synchronous", "NORMAL")
    connection.pragma("wal_autocheckpoint", 0)
    connection.execute("SELECT 1 FROM sqlite_master").fetchall()  # before its first read it knows of no log
    return connection


def clear_unused(page: bytes, number: int) -> bytes:
    """Return a page with zeros between its header and its rows.

    https://www.sqlite.org/fileformat2.html#b_tree_pages
    """
    start = FILE_HEADER if number == 1 else 0
    header = HEADERS.get(page[start])
    if header is None or is_pointer_map(number, len(page)):
        return page
    cells, content = int.from_bytes(page[start + 3 : start + 5]), int.from_bytes(page[start + 5 : start + 7])
    begin, end = start + header + 2 * cells, content or len(ZEROS)
    if not begin < end <= len(page) or page[begin:end] == ZEROS[: end - begin]:
        return page
    return page[:begin] + ZEROS[: end - begin] + page[end:]


def is_pointer_map(number: int, size: int) -> bool:
    """Return whether a page says where others are, as those of a file do that can become smaller."""
    between = size // 5 + 1
    place = (number - 2) // between * between + 2
    return number == (place + 1 if place == LOCK_BYTE // size + 1 else place)

"""Checkpoints: they write the pages of the write-ahead log into the file of a SQLite database.

SQLite overwrites what is deleted (`secure_delete`), but not the copies that stay behind in the unused middle of a page
when rows are moved to another page. So a connection of its own writes the pages, and clears that part of them.
"""

from pathlib import Path

import apsw

# No two threads use a connection at the same time, so that SQLite needs no lock for each value that is bound.
OPEN_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX
NAME = "dragoman"  # of the layer below SQLite
HEADERS = {2: 12, 5: 12, 10: 8, 13: 8}  # kinds of b-tree pages, and the lengths of their headers
FILE_HEADER = 100  # bytes, on the first page
LOCK_BYTE = 0x40000000  # the page with this byte is not used
ZEROS = bytes(65_536)  # the largest page


class ClearingFile(apsw.VFSFile):
    """The file of a database."""

    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(clear_unused(data, offset // len(data) + 1), offset)


class ClearingFiles(apsw.VFS):
    """SQLite's files as they are, but for the pages that are written into a database."""

    def __init__(self) -> None:
        super().__init__(NAME, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return ClearingFile(name, flags) if flags[0] & apsw.SQLITE_OPEN_MAIN_DB else super().xOpen(name, flags)


FILES = ClearingFiles()  # SQLite knows it as long as it exists


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

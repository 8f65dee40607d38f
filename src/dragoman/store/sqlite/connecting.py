"""A path comes in; a private, migrated connection in write-ahead mode goes out."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from dragoman.store.sqlite.migrations import MIGRATIONS
from dragoman.store.store import StoreError

T = TypeVar("T")

BUSY_TIMEOUT_MS = 5_000


def in_transaction(connection: apsw.Connection, work: Callable[[apsw.Connection], T]) -> T:
    """Begin with the write lock: a transaction that turns from reading to writing may fail without waiting."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def connect(path: Path) -> apsw.Connection:
    _make_private(path)
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.pragma("synchronous", "NORMAL")
        connection.pragma("foreign_keys", True)
        _use_write_ahead_log(connection)
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    """Make directory and file ours alone before SQLite sees them; its WAL files inherit the mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # By path, never by descriptor: closing one would drop the locks of another connection in this process.
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)


def _use_write_ahead_log(connection: apsw.Connection) -> None:
    """Switch to WAL; where two processes do so at once, one is told busy without the usual wait."""
    patience = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.pragma("journal_mode", "WAL")
            return
        except apsw.BusyError:
            if time.monotonic() > patience:
                raise
            time.sleep(0.01)


def _migrate(connection: apsw.Connection) -> None:
    def apply(connection: apsw.Connection) -> None:
        done = int(connection.pragma("user_version"))
        for number, statements in enumerate(MIGRATIONS[done:], start=done + 1):
            connection.execute(statements)
            connection.pragma("user_version", number)

    done = int(connection.pragma("user_version"))
    if done > len(MIGRATIONS):
        raise StoreError(f"{connection.filename} was written by a newer version of dragoman")
    if done < len(MIGRATIONS):
        in_transaction(connection, apply)

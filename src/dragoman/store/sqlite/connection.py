"""Connections to a SQLite file: private to its owner, in write-ahead mode, with the current schema."""

import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

import apsw

from dragoman.store.sqlite.migrations import MIGRATIONS
from dragoman.store.store import StoreError

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

BUSY_TIMEOUT_MS = 5_000
# No two threads use a connection at the same time, so that SQLite needs no lock for each value that is bound.
OPEN_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX


class Runner(Protocol):
    """Runs work on the store's connection."""

    async def read(self, work: Work[T]) -> T: ...
    async def write(self, work: Work[T]) -> T: ...


def in_transaction(connection: apsw.Connection, work: Work[T]) -> T:
    """Run work in a transaction that takes the write lock first.

    A transaction that upgrades from reading to writing may fail without waiting for the busy timeout.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def only_row(rows: Iterable[tuple[object, ...]]) -> tuple[int, ...]:
    [row] = rows
    return tuple(count for count in row if isinstance(count, int))


def has_changed(connection: apsw.Connection, query: str, values: tuple[str | int | bytes, ...]) -> bool:
    connection.execute(query, values)
    return connection.changes() > 0


def connect(path: Path) -> apsw.Connection:
    _make_private(path)
    connection = apsw.Connection(str(path), flags=OPEN_FLAGS)
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
    """Make directory and file accessible to their owner only; SQLite's WAL files inherit the mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # By path, not by descriptor: closing a descriptor would drop the locks of other connections in this process.
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)


def _use_write_ahead_log(connection: apsw.Connection) -> None:
    """Switch to WAL.

    If two processes do so at the same time, SQLite reports busy to one of them without waiting for the busy timeout.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.pragma("journal_mode", "WAL")
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
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

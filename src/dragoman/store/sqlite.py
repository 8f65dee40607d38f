"""The store on SQLite: functions over a connection come in, run one by one on their own thread; results go out."""

import asyncio
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw

from dragoman.store.migrations import MIGRATIONS

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

SQLITE = "sqlite:///"
POSTGRESQL = "postgresql://"
BUSY_TIMEOUT_MS = 5_000


class StoreError(Exception):
    """The store cannot be opened, read or written; says which file and why."""


class Store:
    """One connection on one thread, so that the event loop never waits for a disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            self._connection = self._thread.submit(self._guarded, lambda: _connect(path)).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def read(self, work: Work[T]) -> T:
        """Run a function that only reads."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, work)

    async def write(self, work: Work[T]) -> T:
        """Run a function inside one transaction that holds the write lock from its start."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, work)

    async def version(self) -> int:
        """A number that changes whenever another connection, of any process, has written."""
        return await self.read(lambda connection: int(connection.pragma("data_version")))

    def close(self) -> None:
        """Finish the work begun and close; nothing may be asked afterwards."""
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()

    def _read(self, work: Work[T]) -> T:
        return self._guarded(lambda: work(self._connection))

    def _write(self, work: Work[T]) -> T:
        return self._guarded(lambda: in_transaction(self._connection, work))

    def _guarded(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except (apsw.Error, OSError) as error:
            raise StoreError(f"{self.path}: {error}") from error


def open_store(url: str) -> Store:
    """Open what `store.url` names, making file and directory if need be."""
    if url.startswith(POSTGRESQL):
        raise StoreError("store.url: PostgreSQL is not yet in this version, use sqlite:///PATH")
    if not url.startswith(SQLITE):
        raise StoreError("store.url: expected sqlite:///PATH")
    return Store(Path(url.removeprefix(SQLITE)).expanduser())


def in_transaction(connection: apsw.Connection, work: Work[T]) -> T:
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


def _connect(path: Path) -> apsw.Connection:
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

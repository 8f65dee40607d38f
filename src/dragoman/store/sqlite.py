"""The driver of SQLite: a file that is private to its owner, in write-ahead mode."""

import asyncio
import logging
import os
import re
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import apsw

from dragoman.store.database import (
    HOLD_WAIT_S,
    MAX_QUERIES,
    QUERY_TIMEOUT_S,
    HeldElsewhere,
    MakeRow,
    NotUnique,
    Operation,
    Session,
    StoreError,
    Value,
)
from dragoman.store.file_lock import hold_file_lock
from dragoman.store.sqlite_checkpoints import DESCRIPTORS, OPEN_FLAGS, connect_checkpointer
from dragoman.store.sqlite_migrations import MIGRATIONS

T = TypeVar("T")
NoteCommit = Callable[[apsw.Connection, str, int], int]  # the connection, the database, and the pages of its log

log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 5_000
INCREMENTAL = 2  # a mode of auto_vacuum
FREED_AT_ONCE = 256  # pages; while they are moved, writers wait
CHECKPOINT_PAGES = 2_000
MAX_LOG_PAGES = 20_000
CHECKPOINT_WAIT_MS = 5  # while others wait to write
EMPTY_LOG_TRIES = 50
EMPTY_LOG_PAUSE_S = 0.1
INSTRUCTIONS = 10_000  # of SQLite's virtual machine, between two looks at the clock

REWRITES = (  # of PostgreSQL's words
    (r"\$(\d+)", r"?\1"),
    (r"\bdragoman\.", ""),  # the schema
    (r"::[a-z]+(?: precision)?", ""),  # types of values
    (r"@row\b", "rowid"),
    (r"\bgreatest\(", "max("),
    (r"\bleast\(", "min("),
    (r"\bstrpos\(", "instr("),
    (r"\bjson_array_elements\(", "json_each("),
    (r" FOR UPDATE(?: SKIP LOCKED)?", ""),  # a writer is alone
)
PLACE = r"\?(\d+)"


@lru_cache(maxsize=512)
def rewrite(statement: str) -> str:
    for words, ours in REWRITES:
        statement = re.sub(words, ours, statement)
    places = [int(place) for place in re.findall(PLACE, statement)]
    if places == list(range(1, len(places) + 1)):  # shorter: the text is compared each time it is run
        statement = re.sub(PLACE, "?", statement)
    return statement


class SqliteSession:
    """Runs statements at once, on the thread that it is used on: its coroutines never wait."""

    is_sqlite = True

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def fetch(self, make: MakeRow[T], statement: str, *values: Value) -> list[T]:
        return [make(*row) for row in self._run(statement, values)]

    async def execute(self, statement: str, *values: Value) -> int:
        self._run(statement, values)
        return self._connection.changes()

    async def execute_many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        try:
            self._connection.executemany(rewrite(statement), rows)
        except apsw.ConstraintError as error:
            raise NotUnique(f"{self._connection.filename}: {error}") from error

    async def lock(self, name: str) -> None:
        """Do nothing: a transaction has the write lock from its start."""

    def _run(self, statement: str, values: tuple[Value, ...]) -> apsw.Cursor:
        try:
            return self._connection.execute(rewrite(statement), values)
        except apsw.ConstraintError as error:
            raise NotUnique(f"{self._connection.filename}: {error}") from error


class SqliteDatabase:
    """Reads on one thread and writes on another, so that neither the disk nor a writer blocks the event loop.

    Queries of the admin API have threads and connections of their own, made when the first one is run.
    """

    patience_s = 5.0  # its disk may be slow

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = _Worker(partial(connect_writer, path, self._record_commit), path, "store")
        self._reader = _Worker(partial(connect, path), path, "store reader")
        self._checkpointer = _Worker(partial(connect_checkpointer, path), path, "store checkpoints")
        self._is_checkpointing = False
        DESCRIPTORS.add_user(path)
        self._query_threads = ThreadPoolExecutor(max_workers=MAX_QUERIES, thread_name_prefix="store query")
        self._query_connections: SimpleQueue[apsw.Connection] = SimpleQueue()  # those that are not in use

    @property
    def name(self) -> str:
        return str(self.path)

    async def open(self) -> None:
        await self._writer.run(lambda connection: None)

    async def close(self) -> None:
        self._query_threads.shutdown()
        while not self._query_connections.empty():
            self._query_connections.get().close()
        if self._writer.is_connected:
            with suppress(StoreError):  # the connection that is closed last writes the log into the file
                await self._checkpointer.run(lambda connection: None)
        await self._reader.close()
        await self._writer.close()
        await self._checkpointer.close()
        DESCRIPTORS.remove_user(self.path)

    async def read(self, operation: Operation[T]) -> T:
        if not self._writer.is_connected:
            await self.open()  # before the reader connects, so that one connection migrates
        return await self._reader.run(lambda connection: complete(operation(SqliteSession(connection))))

    async def write(self, operation: Operation[T]) -> T:
        return await self._writer.run(lambda connection: _in_transaction(connection, operation))

    async def write_through(self, operation: Operation[T]) -> T:
        """Run an operation in one transaction, which is on the disk at its end: a power cut does not undo it."""
        return await self._writer.run(lambda connection: _write_through(connection, operation))

    async def query(self, operation: Operation[T]) -> T:
        if not self._writer.is_connected:
            await self.open()
        return await asyncio.get_running_loop().run_in_executor(self._query_threads, self._query, operation)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator["_HoldingSession"]:
        """Hold a lock beside the file: a transaction would hold up every other process that writes."""
        async with hold_file_lock(self.path.with_name(f"{self.path.name}-{name}"), HOLD_WAIT_S) as is_held:
            if not is_held:
                raise HeldElsewhere(f"{self.path}: another process has held {name} for too long")
            yield _HoldingSession(self)

    async def tidy(self) -> None:
        """Give free pages back, a few at a time, and empty the write-ahead log, which still has what was removed."""
        while await self._writer.run(_free_pages):
            pass  # what waits for the thread is run in between
        for _ in range(EMPTY_LOG_TRIES):
            if await self._checkpointer.run(_empty_log):
                return
            await asyncio.sleep(EMPTY_LOG_PAUSE_S)  # a reader needs the log

    def _record_commit(self, connection: apsw.Connection, _: str, pages: int) -> int:
        """Begin a checkpoint on its thread when the log has grown. This is called on the thread that writes."""
        if pages >= CHECKPOINT_PAGES and not self._is_checkpointing:
            self._is_checkpointing = True
            self._checkpointer.begin(self._checkpoint)
        if pages > MAX_LOG_PAGES:  # that thread does not keep up
            with suppress(apsw.BusyError):
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return apsw.SQLITE_OK

    def _checkpoint(self, connection: apsw.Connection) -> None:
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            # Others have written meanwhile. They wait until that is in the file, too, and the log can start again.
            connection.set_busy_timeout(CHECKPOINT_WAIT_MS)
            with suppress(apsw.BusyError):
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except (apsw.Error, OSError) as error:
            log.warning("%s: the write-ahead log could not be written into the file: %s", self.path, error)
        finally:
            self._is_checkpointing = False

    def _query(self, operation: Operation[T]) -> T:
        deadline = time.monotonic() + QUERY_TIMEOUT_S
        try:
            connection = self._query_connection()
            connection.set_progress_handler(lambda: time.monotonic() > deadline, INSTRUCTIONS)
            try:
                return complete(operation(SqliteSession(connection)))
            finally:
                self._query_connections.put(connection)
        except apsw.InterruptError as error:
            raise StoreError(f"{self.path}: the query took longer than {QUERY_TIMEOUT_S:g} s") from error
        except (apsw.Error, OSError) as error:
            raise StoreError(f"{self.path}: {error}") from error

    def _query_connection(self) -> apsw.Connection:
        try:
            return self._query_connections.get_nowait()
        except Empty:
            return connect(self.path)


class _HoldingSession:
    """Runs each statement in a transaction of its own."""

    is_sqlite = True

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def fetch(self, make: MakeRow[T], statement: str, *values: Value) -> list[T]:
        return await self._database.read(lambda session: session.fetch(make, statement, *values))

    async def execute(self, statement: str, *values: Value) -> int:
        return await self._database.write_through(lambda session: session.execute(statement, *values))

    async def execute_many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        await self._database.write_through(lambda session: session.execute_many(statement, rows))

    async def lock(self, name: str) -> None:
        """Do nothing: each statement is alone."""

    async def commit(self) -> None:
        """Do nothing: each statement has been."""


class _Worker:
    """A thread with a connection, which it makes when it is first used."""

    def __init__(self, connect: Callable[[], apsw.Connection], path: Path, name: str) -> None:
        self._connect = connect
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._connection: apsw.Connection | None = None

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    async def run(self, work: Callable[[apsw.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    def begin(self, work: Callable[[apsw.Connection], None]) -> None:
        """Let the thread do some work that nothing waits for."""
        self._thread.submit(self._run, work)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    def _run(self, work: Callable[[apsw.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = self._connect()
            return work(self._connection)
        except (apsw.Error, OSError) as error:
            raise StoreError(f"{self._path}: {error}") from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()


def complete(operation: Awaitable[T]) -> T:
    """Run an operation to its end on this thread; with a session of SQLite it never waits."""
    steps = operation.__await__()
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("an operation of the store waited for something else than its session")


def _in_transaction(connection: apsw.Connection, operation: Operation[T]) -> T:
    """Run an operation in a transaction that takes the write lock first.

    A transaction that upgrades from reading to writing may fail without waiting for the busy timeout.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = complete(operation(SqliteSession(connection)))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _write_through(connection: apsw.Connection, operation: Operation[T]) -> T:
    connection.pragma("synchronous", "FULL")
    try:
        return _in_transaction(connection, operation)
    finally:
        connection.pragma("synchronous", "NORMAL")


def connect(path: Path) -> apsw.Connection:
    """Open a connection to a file with the current schema; both are made if they are missing."""
    _make_private(path)
    connection = apsw.Connection(str(path), flags=OPEN_FLAGS)
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.pragma("auto_vacuum", INCREMENTAL)  # of a new file; an older one keeps what it has until VACUUM
        connection.pragma("secure_delete", True)
        connection.pragma("synchronous", "NORMAL")
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma("foreign_keys", True)
        _use_write_ahead_log(connection)
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_writer(path: Path, record_commit: NoteCommit) -> apsw.Connection:
    """Open the connection that writes. A file of an older version, which never became smaller, is rewritten once."""
    connection = connect(path)
    if int(connection.pragma("auto_vacuum")) != INCREMENTAL:
        _rewrite(connection, path)
    connection.set_wal_hook(record_commit)
    return connection


def _rewrite(connection: apsw.Connection, path: Path) -> None:
    size_mb = path.stat().st_size / 1e6
    log.warning("%s (%.0f MB) is rewritten once, without what was removed; until then, requests wait", path, size_mb)
    try:
        connection.pragma("auto_vacuum", INCREMENTAL)
        connection.execute("VACUUM")
    except apsw.Error as error:  # another process writes, or the disk is full
        log.warning("%s could not be rewritten, the next start tries again: %s", path, error)
    _empty_log(connection)


def _free_pages(connection: apsw.Connection) -> bool:
    """Remove some free pages from the file; return whether there are more."""
    before = int(connection.pragma("freelist_count"))
    if not before:
        return False
    connection.execute(f"PRAGMA incremental_vacuum({FREED_AT_ONCE})").fetchall()
    return 0 < int(connection.pragma("freelist_count")) < before


def _empty_log(connection: apsw.Connection) -> bool:
    """Write the log into the file and truncate it; return False if a reader needs it."""
    connection.set_busy_timeout(CHECKPOINT_WAIT_MS)
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    finally:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    return True


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
    async def apply(_session: Session) -> None:
        done = int(connection.pragma("user_version"))
        for number, statements in enumerate(MIGRATIONS[done:], start=done + 1):
            connection.execute(statements)
            connection.pragma("user_version", number)

    done = int(connection.pragma("user_version"))
    if done > len(MIGRATIONS) and _find_compatible_from(connection, done) > len(MIGRATIONS):
        raise StoreError(f"{connection.filename} was written by a newer version of dragoman; start that version")
    if done < len(MIGRATIONS):
        _in_transaction(connection, apply)


def _find_compatible_from(connection: apsw.Connection, version: int) -> int:
    """Return the oldest version that can use a file of this version: no other one, if the file does not say it."""
    try:
        found = connection.execute("SELECT max(compatible_from) FROM compatibility").fetchall()
    except apsw.SQLError:  # there is no such table
        return version
    return version if found[0][0] is None else int(found[0][0])

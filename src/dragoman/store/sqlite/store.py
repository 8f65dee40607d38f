"""The store on SQLite."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import apsw

from dragoman.store.rollup import SumQuery
from dragoman.store.sqlite import tables, usage
from dragoman.store.sqlite.connection import Work, connect, in_transaction
from dragoman.store.sqlite.responses import SqliteResponses
from dragoman.store.sqlite.runs import SqliteRuns
from dragoman.store.store import AuditRow, KeyId, KeyRow, LiveKey, Rotation, SessionRow, StoreError
from dragoman.store.usage_rows import (
    MAX_QUERIES,
    QUERY_TIMEOUT_S,
    RequestPage,
    RequestSearch,
    UsageRow,
    UsageSpan,
    UsageSum,
)

T = TypeVar("T")
INSTRUCTIONS = 10_000  # of SQLite's virtual machine, between two looks at the clock


class SqliteStore:
    """Runs operations one by one on a thread with a connection, so that the disk never blocks the event loop.

    Queries of the admin API have threads and connections of their own, made when the first one is run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._connection: apsw.Connection | None = None
        self._query_threads = ThreadPoolExecutor(max_workers=MAX_QUERIES, thread_name_prefix="store query")
        self._query_connections: SimpleQueue[apsw.Connection] = SimpleQueue()  # those that are not in use
        self.responses = SqliteResponses(self)
        self.runs = SqliteRuns(self)

    @property
    def name(self) -> str:
        return str(self.path)

    async def open(self) -> None:
        await self.read(lambda connection: None)

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        self._query_threads.shutdown()
        while not self._query_connections.empty():
            self._query_connections.get().close()
        await loop.run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    async def version(self) -> int:
        return await self.read(tables.count_key_changes)

    async def add_key(self, row: KeyRow, digest: bytes) -> None:
        await self.write(lambda connection: tables.add_key(connection, row, digest))

    async def add_first_key(self, row: KeyRow, digest: bytes) -> bool:
        return await self.write(lambda connection: tables.add_first_key(connection, row, digest))

    async def list_keys(self) -> tuple[KeyRow, ...]:
        return await self.read(tables.list_keys)

    async def list_live_keys(self) -> tuple[LiveKey, ...]:
        return await self.read(tables.list_live_keys)

    async def find_key(self, digest: bytes) -> KeyRow | None:
        return await self.read(lambda connection: tables.find_key(connection, digest))

    async def revoke_key(self, which: str, now: int, version: int | None = None) -> KeyRow | None:
        return await self.write(lambda connection: tables.revoke_key(connection, which, now, version))

    async def rotate_key(self, which: str, rotation: Rotation, version: int | None = None) -> KeyRow | None:
        return await self.write(lambda connection: tables.rotate_key(connection, which, rotation, version))

    async def touch_keys(self, used: frozenset[KeyId], now: int) -> None:
        await self.write(lambda connection: tables.touch_keys(connection, used, now))

    async def remember_cut(self, tenant: str, digest: bytes, lost: bytes, now: int) -> None:
        await self.write(lambda connection: tables.remember_cut(connection, tenant, digest, lost, now))

    async def recall_cut(self, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
        return await self.read(lambda connection: tables.recall_cut(connection, tenant, digests, now))

    async def has_cuts(self, now: int) -> bool:
        return await self.read(lambda connection: tables.has_cuts(connection, now))

    async def append_usage(self, rows: Sequence[UsageRow]) -> None:
        await self.write(lambda connection: usage.append_usage(connection, rows))

    async def remove_usage(self, before_ms: int, limit: int) -> int:
        return await self.write(lambda connection: usage.remove_usage(connection, before_ms, limit))

    async def read_usage_rows(self, span: UsageSpan) -> tuple[UsageRow, ...]:
        return await self.read(lambda connection: usage.list_usage(connection, span))

    async def read_usage_sums(self, query: SumQuery) -> tuple[UsageSum, ...]:
        return await self.query(lambda connection: usage.sum_usage(connection, query))

    async def read_ttft_counts(self, query: SumQuery) -> dict[str, dict[int, int]]:
        return await self.query(lambda connection: usage.count_ttft(connection, query))

    async def search_requests(self, search: RequestSearch) -> RequestPage:
        return await self.query(lambda connection: usage.search_requests(connection, search))

    async def add_audit(self, row: AuditRow) -> None:
        await self.write(lambda connection: tables.add_audit(connection, row))

    async def remove_audit(self, before_ms: int) -> int:
        return await self.write(lambda connection: tables.remove_audit(connection, before_ms))

    async def list_audit_rows(self, before: int, limit: int) -> tuple[AuditRow, ...]:
        return await self.query(lambda connection: tables.list_audit(connection, before, limit))

    async def add_session(self, row: SessionRow) -> None:
        await self.write(lambda connection: tables.add_session(connection, row))

    async def find_session(self, digest: bytes) -> SessionRow | None:
        return await self.read(lambda connection: tables.find_session(connection, digest))

    async def touch_session(self, id: str, used_at: int) -> None:
        await self.write(lambda connection: tables.touch_session(connection, id, used_at))

    async def end_session(self, id: str) -> bool:
        return await self.write(lambda connection: tables.end_session(connection, id))

    async def list_sessions(self) -> tuple[SessionRow, ...]:
        return await self.read(tables.list_sessions)

    async def read(self, work: Work[T]) -> T:
        """Run a function that only reads."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    async def write(self, work: Work[T]) -> T:
        """Run a function inside one transaction that holds the write lock from its start."""
        return await self.read(lambda connection: in_transaction(connection, work))

    def _run(self, work: Work[T]) -> T:
        try:
            if self._connection is None:
                self._connection = connect(self.path)
            return work(self._connection)
        except (apsw.Error, OSError) as error:
            raise StoreError(f"{self.path}: {error}") from error

    async def query(self, work: Work[T]) -> T:
        """Run a function that only reads, on a connection for queries; raises StoreError after QUERY_TIMEOUT_S."""
        return await asyncio.get_running_loop().run_in_executor(self._query_threads, self._query, work)

    def _query(self, work: Work[T]) -> T:
        deadline = time.monotonic() + QUERY_TIMEOUT_S
        try:
            connection = self._query_connection()
            connection.set_progress_handler(lambda: time.monotonic() > deadline, INSTRUCTIONS)
            try:
                return work(connection)
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

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

"""The store on SQLite."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw

from dragoman.store.sqlite import tables
from dragoman.store.sqlite.connection import connect, in_transaction
from dragoman.store.store import KeyId, KeyRow, StoreError
from dragoman.store.usage_rows import GroupBy, UsageRow, UsageSpan, UsageSum

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]


class SqliteStore:
    """Runs operations one by one on a thread with the only connection, so that the disk never blocks the event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._connection: apsw.Connection | None = None

    @property
    def name(self) -> str:
        return str(self.path)

    async def open(self) -> None:
        await self.read(lambda connection: None)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    async def version(self) -> int:
        return await self.read(lambda connection: int(connection.pragma("data_version")))

    async def add_key(self, row: KeyRow, digest: bytes) -> None:
        await self.write(lambda connection: tables.add_key(connection, row, digest))

    async def add_first_key(self, row: KeyRow, digest: bytes) -> bool:
        return await self.write(lambda connection: tables.add_first_key(connection, row, digest))

    async def keys(self) -> tuple[KeyRow, ...]:
        return await self.read(tables.list_keys)

    async def live_digests(self) -> dict[bytes, KeyId]:
        return await self.read(tables.live_digests)

    async def find_key(self, digest: bytes) -> KeyRow | None:
        return await self.read(lambda connection: tables.find_key(connection, digest))

    async def revoke_key(self, which: str, now: int) -> KeyRow | None:
        return await self.write(lambda connection: tables.revoke_key(connection, which, now))

    async def touch_keys(self, used: frozenset[KeyId], now: int) -> None:
        await self.write(lambda connection: tables.touch_keys(connection, used, now))

    async def remember_cut(self, tenant: str, digest: bytes, lost: bytes, now: int) -> None:
        await self.write(lambda connection: tables.remember_cut(connection, tenant, digest, lost, now))

    async def recall_cut(self, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
        return await self.read(lambda connection: tables.recall_cut(connection, tenant, digests, now))

    async def has_cuts(self, now: int) -> bool:
        return await self.read(lambda connection: tables.has_cuts(connection, now))

    async def append_usage(self, rows: Sequence[UsageRow]) -> None:
        await self.write(lambda connection: tables.append_usage(connection, rows))

    async def remove_usage(self, before_ms: int, limit: int) -> int:
        return await self.write(lambda connection: tables.remove_usage(connection, before_ms, limit))

    async def usage_rows(self, span: UsageSpan) -> tuple[UsageRow, ...]:
        return await self.read(lambda connection: tables.list_usage(connection, span))

    async def usage_sums(self, span: UsageSpan, by: GroupBy) -> tuple[UsageSum, ...]:
        return await self.read(lambda connection: tables.sum_usage(connection, span, by))

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

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

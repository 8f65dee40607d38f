"""Work comes in and is given a migrated connection, a new one where the server was away; what it returns goes out."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import parse_qs, unquote

import asyncpg

from dragoman.store.postgres.migrations import MIGRATIONS, VERSION_TABLE
from dragoman.store.store import StoreError

T = TypeVar("T")
Work = Callable[[asyncpg.Connection], Awaitable[T]]

CONNECTIONS = 4
CONNECT_S = 5.0
WORK_S = 15.0
CLOSE_S = 2.0
MIGRATION_LOCK = 0x647261676F  # any number that nobody else in the database uses

TROUBLE = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, ValueError)


class Connections:
    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool | None = None
        self._migrated = False
        self._migrating = asyncio.Lock()

    @property
    def name(self) -> str:
        """The url without user and password, even where the password's own signs are not escaped."""
        return "postgresql://" + self._url.partition("://")[2].rpartition("@")[2].partition("?")[0]

    async def run(self, work: Work[T]) -> T:
        try:
            async with asyncio.timeout(WORK_S):
                if not self._migrated:
                    await self._prepare()
                return await self._borrowed(work)
        except TimeoutError as error:
            raise StoreError(f"{self.name}: no answer in time") from error
        except TROUBLE as error:
            raise StoreError(f"{self.name}: {self._said(error)}") from error

    async def close(self) -> None:
        if self._pool is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._pool.close()
        except (TimeoutError, *TROUBLE):
            self._pool.terminate()

    async def _borrowed(self, work: Work[T]) -> T:
        assert self._pool is not None
        connection = await self._pool.acquire(timeout=CONNECT_S)
        try:
            return await work(connection)
        except BaseException as error:
            if not isinstance(error, asyncpg.PostgresError):
                connection.terminate()  # cut off in the middle of something, it is of no more use
            raise
        finally:
            await self._pool.release(connection)

    async def _prepare(self) -> None:
        async with self._migrating:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=CONNECTIONS,
                    timeout=CONNECT_S,
                    server_settings={"application_name": "dragoman"},
                )
            if not self._migrated:
                await self._borrowed(_migrate)
                self._migrated = True

    def _said(self, error: Exception) -> str:
        """The server's or the driver's words; a password that they quote is taken out."""
        words = str(error) or type(error).__name__
        before, _, options = self._url.partition("://")[2].partition("?")
        password = before.rpartition("@")[0].partition(":")[2]
        for secret in {password, unquote(password), *parse_qs(options).get("password", ())} - {""}:
            words = words.replace(secret, "***")
        return words


async def _migrate(connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        # Several gateways may start at once: one makes the tables, the others find them made.
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        if not await connection.fetchval("SELECT to_regclass('dragoman.schema_version') IS NOT NULL"):
            await connection.execute(VERSION_TABLE)
        done = int(await connection.fetchval("SELECT max(version) FROM dragoman.schema_version") or 0)
        if done > len(MIGRATIONS):
            raise StoreError("the database was written by a newer version of dragoman")
        for number, statements in enumerate(MIGRATIONS[done:], start=done + 1):
            await connection.execute(statements)
            await connection.execute("INSERT INTO dragoman.schema_version VALUES ($1)", number)

"""The driver of PostgreSQL: pools of connections with the current schema, which reconnect after the server was away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qs, unquote

import asyncpg

from dragoman.store.database import (
    HOLD_WAIT_S,
    MAX_QUERIES,
    QUERY_TIMEOUT_S,
    HeldElsewhere,
    MakeRow,
    NotUnique,
    Operation,
    StoreError,
    Value,
)
from dragoman.store.postgres_migrations import MIGRATIONS, VERSION_TABLE

T = TypeVar("T")
Work = Callable[[asyncpg.Connection], Awaitable[T]]
ExplainErrors = Callable[[], AbstractContextManager[None]]

CONNECTIONS = 4
CONNECT_TIMEOUT_S = 5.0
WORK_TIMEOUT_S = 15.0
MIGRATION_TIMEOUT_S = 3600.0  # with millions of rows
CLOSE_TIMEOUT_S = 2.0
IDLE_TIMEOUT_S = 10.0  # within a transaction: what a gateway that hangs has locked, others need
HOLD_SILENCE_S = 40.0  # longer than the request that is made meanwhile may take
MIGRATION_LOCK = 0x647261676F  # an arbitrary number that identifies this lock
LOCK_SEED = 0x726573  # so that the locks of names differ from other advisory locks

DATABASE_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, ValueError)


class PostgresSession:
    is_sqlite = False

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, make: MakeRow[T], statement: str, *values: Value) -> list[T]:
        return [make(*row) for row in await self._connection.fetch(rewrite(statement), *values)]

    async def execute(self, statement: str, *values: Value) -> int:
        try:
            status: str = await self._connection.execute(rewrite(statement), *values)
        except asyncpg.UniqueViolationError as error:
            raise NotUnique(str(error)) from error
        count = status.rpartition(" ")[2]  # INSERT 0 7
        return int(count) if count.isdecimal() else 0

    async def execute_many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        await self._connection.executemany(rewrite(statement), rows)

    async def lock(self, name: str) -> None:
        await self._connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, $2))", name, LOCK_SEED)


class _HoldingSession(PostgresSession):
    """A session in a transaction of its own, which ends when its user commits."""

    def __init__(self, connection: asyncpg.Connection, explain_errors: ExplainErrors) -> None:
        super().__init__(connection)
        self._explain_errors = explain_errors
        self._transaction = connection.transaction()

    async def begin(self) -> None:
        with self._explain_errors():
            await self._transaction.start()

    async def commit(self) -> None:
        with self._explain_errors():
            await self._transaction.commit()

    async def fetch(self, make: MakeRow[T], statement: str, *values: Value) -> list[T]:
        with self._explain_errors():
            return await super().fetch(make, statement, *values)

    async def execute(self, statement: str, *values: Value) -> int:
        with self._explain_errors():
            return await super().execute(statement, *values)


def rewrite(statement: str) -> str:
    return statement.replace("@row", "place")


class PostgresDatabase:
    """Runs each operation on a pooled connection, with a timeout; several gateways may share the database."""

    patience_s = 2.0

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool | None = None
        self._query_pool: asyncpg.Pool | None = None
        self._migrated = False
        self._migrating = asyncio.Lock()

    @property
    def name(self) -> str:
        """The URL without user and password, even if special characters of the password are not escaped."""
        return "postgresql://" + self._url.partition("://")[2].rpartition("@")[2].partition("?")[0]

    async def open(self) -> None:
        await self._run(_do_nothing, is_query=False)

    async def read(self, operation: Operation[T]) -> T:
        return await self._run(lambda connection: operation(PostgresSession(connection)), is_query=False)

    async def write(self, operation: Operation[T]) -> T:
        return await self._run(partial(_in_transaction, operation=operation), is_query=False)

    async def query(self, operation: Operation[T]) -> T:
        return await self._run(lambda connection: operation(PostgresSession(connection)), is_query=True)

    async def tidy(self) -> None:
        """Do nothing: the server's autovacuum does, as its administrator has set it."""

    async def _run(self, work: Work[T], *, is_query: bool) -> T:
        with self._explain_errors():
            async with asyncio.timeout(WORK_TIMEOUT_S) as deadline:
                if not self._migrated:
                    async with self._migrating:
                        if self._pool is None:
                            self._pool = await self.connect(CONNECTIONS, {})
                        if not self._migrated:
                            await with_connection(self._pool, partial(_migrate, deadline=deadline))
                            self._migrated = True
                if is_query and self._query_pool is None:
                    timeout_ms = str(int(QUERY_TIMEOUT_S * 1000))
                    self._query_pool = await self.connect(MAX_QUERIES, {"statement_timeout": timeout_ms})
                pool = self._query_pool if is_query else self._pool
                assert pool is not None
                return await with_connection(pool, work)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator["_HoldingSession"]:
        """Open a connection for one transaction, in which rows are locked.

        The server ends it if we are silent for too long: a gateway that is frozen or cut off holds nothing.
        """
        await self.open()
        with self._explain_errors():
            connection = await asyncpg.connect(
                self._url,
                timeout=CONNECT_TIMEOUT_S,
                command_timeout=WORK_TIMEOUT_S,
                server_settings={
                    "application_name": "dragoman",
                    "lock_timeout": f"{HOLD_WAIT_S:g}s",
                    "idle_in_transaction_session_timeout": f"{HOLD_SILENCE_S:g}s",
                },
            )
        try:
            session = _HoldingSession(connection, self._explain_errors)
            await session.begin()
            yield session
        finally:
            connection.terminate()  # what was not committed is undone

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Raise StoreError for what the driver raises."""
        try:
            yield
        except TimeoutError as error:
            raise StoreError(f"{self.name}: no response within {WORK_TIMEOUT_S:g} s") from error
        except asyncpg.LockNotAvailableError as error:
            raise HeldElsewhere(f"{self.name}: another process has held a row for too long") from error
        except DATABASE_ERRORS as error:
            raise StoreError(f"{self.name}: {self.describe(error)}") from error

    async def close(self) -> None:
        for pool in (self._query_pool, self._pool):
            if pool is None:
                continue
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await pool.close()
            except (TimeoutError, *DATABASE_ERRORS):
                pool.terminate()

    async def connect(self, size: int, settings: dict[str, str]) -> asyncpg.Pool:
        """Return a pool of connections of its own, which the caller closes."""
        return await asyncpg.create_pool(
            self._url,
            min_size=0,
            max_size=size,
            timeout=CONNECT_TIMEOUT_S,
            server_settings={
                "application_name": "dragoman",
                "idle_in_transaction_session_timeout": f"{IDLE_TIMEOUT_S:g}s",
                **settings,
            },
        )

    def describe(self, error: Exception) -> str:
        """Return the message of the server or the driver without the password, if it quotes that."""
        message = str(error) or type(error).__name__
        before, _, options = self._url.partition("://")[2].partition("?")
        password = before.rpartition("@")[0].partition(":")[2]
        for secret in {password, unquote(password), *parse_qs(options).get("password", ())} - {""}:
            message = message.replace(secret, "***")
        return message


async def _in_transaction(connection: asyncpg.Connection, operation: Operation[T]) -> T:
    async with connection.transaction():
        return await operation(PostgresSession(connection))


async def _do_nothing(connection: asyncpg.Connection) -> None: ...


async def with_connection(pool: asyncpg.Pool, work: Work[T]) -> T:
    """Use a connection of a pool; one that was interrupted is closed."""
    connection = await pool.acquire(timeout=CONNECT_TIMEOUT_S)
    try:
        return await work(connection)
    except BaseException as error:
        if not isinstance(error, (asyncpg.PostgresError, NotUnique)):
            with suppress(asyncpg.InterfaceError):  # if the server has closed it, the pool has taken it back
                connection.terminate()  # interrupted in the middle of an operation, its state is unknown
        raise
    finally:
        await pool.release(connection)


async def _migrate(connection: asyncpg.Connection, deadline: asyncio.Timeout) -> None:
    async with connection.transaction():
        # Several gateways may start at the same time: one creates the tables, the others wait for it.
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        if not await connection.fetchval("SELECT to_regclass('dragoman.schema_version') IS NOT NULL"):
            await connection.execute(VERSION_TABLE)
        done = int(await connection.fetchval("SELECT max(version) FROM dragoman.schema_version") or 0)
        if done > len(MIGRATIONS) and await _find_compatible_from(connection, done) > len(MIGRATIONS):
            raise StoreError("the database was written by a newer version of dragoman; start that version")
        if done < len(MIGRATIONS):
            deadline.reschedule(asyncio.get_running_loop().time() + MIGRATION_TIMEOUT_S)
        for number, statements in enumerate(MIGRATIONS[done:], start=done + 1):
            await connection.execute(statements)
            await connection.execute("INSERT INTO dragoman.schema_version VALUES ($1)", number)


async def _find_compatible_from(connection: asyncpg.Connection, version: int) -> int:
    """Return the oldest version that can use a database of this one: no other, if the database does not say it."""
    if not await connection.fetchval("SELECT to_regclass('dragoman.compatibility') IS NOT NULL"):
        return version
    found = await connection.fetchval("SELECT max(compatible_from) FROM dragoman.compatibility")
    return version if found is None else int(found)

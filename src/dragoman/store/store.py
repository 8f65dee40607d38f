"""The store: its parts on one database, and how to open the one that a URL names."""

from pathlib import Path
from typing import Self

from dragoman.store.audit import AuditLog
from dragoman.store.client_keys import ClientKeys
from dragoman.store.console_sessions import ConsoleSessionTable
from dragoman.store.cut_calls import CutCallTable
from dragoman.store.database import Database, DriverMissing, StoreError
from dragoman.store.learned_rules import LearnedRules
from dragoman.store.responses import Responses
from dragoman.store.runs import Runs
from dragoman.store.usage import UsageTable

SQLITE = "sqlite:///"
POSTGRESQL = "postgresql://"
NO_POSTGRES_DRIVER = (
    "store.url names PostgreSQL, whose driver is not installed. "
    "Run: pip install asyncpg (with pipx: pipx inject dragoman asyncpg)"
)


class Store(ClientKeys, CutCallTable, LearnedRules, UsageTable, AuditLog, ConsoleSessionTable):
    """Client keys, cut calls, learnt rules, usage, the audit log, console sessions and stored responses.

    Every operation may raise StoreError, does not block the event loop, and works again without a restart once the
    database does.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.responses = Responses(database)
        self.runs = Runs(database)

    @property
    def name(self) -> str:
        """The store's location as shown to users, without a password."""
        return self.database.name

    async def open(self) -> None:
        """Connect and migrate the schema; every other operation does so too if it has not been possible yet."""
        await self.database.open()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish the operations that have begun, then close; no operation may be called afterwards."""
        await self.database.close()


async def open_store(url: str) -> Store:
    """Open the store at this URL, creating its file, directory and tables if they are missing."""
    store = make_store(url)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


def make_store(url: str) -> Store:
    """Return the store at this URL unopened: its first operation opens it."""
    if url.startswith(POSTGRESQL):
        try:
            from dragoman.store.postgres import PostgresDatabase  # slow to import, and most users have no PostgreSQL
        except ModuleNotFoundError as missing:
            if missing.name != "asyncpg":
                raise
            raise DriverMissing(NO_POSTGRES_DRIVER) from None
        return Store(PostgresDatabase(url))
    if url.startswith(SQLITE):
        from dragoman.store.sqlite import SqliteDatabase  # not loaded by what needs only rows

        return Store(SqliteDatabase(Path(url.removeprefix(SQLITE)).expanduser()))
    raise StoreError(f"store.url: expected {SQLITE}PATH or {POSTGRESQL}USER@HOST/NAME")

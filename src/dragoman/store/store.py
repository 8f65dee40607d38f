"""The store: its parts on one database, and how to open the one that a URL names."""

from pathlib import Path
from typing import Self

from dragoman.store.audit import AuditLog
from dragoman.store.client_keys import ClientKeys
from dragoman.store.clock import StoreClock
from dragoman.store.console_sessions import ConsoleSessionTable
from dragoman.store.cooldowns import CooldownRows
from dragoman.store.cut_calls import CutCallTable
from dragoman.store.database import Database, DriverMissing, StoreError
from dragoman.store.learned_rules import LearnedRules
from dragoman.store.limit_tables import LimitTables
from dragoman.store.limit_warnings import LimitWarnings
from dragoman.store.repeatable_requests import RepeatableRequests
from dragoman.store.responses import Responses
from dragoman.store.runs import Runs
from dragoman.store.sealed_credentials import SealedCredentials
from dragoman.store.sealing import FILE_NAME
from dragoman.store.spending import SpendingTable
from dragoman.store.usage import UsageTable

SQLITE = "sqlite:///"
POSTGRESQL = "postgresql://"
NO_POSTGRES_DRIVER = (
    "store.url names PostgreSQL, whose driver is not installed. "
    "Run: pip install asyncpg (with pipx: pipx inject dragoman asyncpg)"
)


class Store(
    ClientKeys,
    LimitTables,
    CutCallTable,
    LearnedRules,
    CooldownRows,
    UsageTable,
    SpendingTable,
    LimitWarnings,
    AuditLog,
    ConsoleSessionTable,
    RepeatableRequests,
    SealedCredentials,
):
    """Client keys, teams, limits, cut calls, learned rules, cooldowns, usage, the audit log, console sessions, stored
    responses, credentials of upstream accounts.

    Every operation may raise StoreError, does not block the event loop, and works again without a restart once the
    database does.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.responses = Responses(database)
        self.runs = Runs(database)
        self.clock = StoreClock(database)

    @property
    def is_server(self) -> bool:
        """Whether it is a server, which several gateways may share."""
        return self.database.name.startswith(POSTGRESQL)

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

        return Store(SqliteDatabase(_sqlite_path(url)))
    raise StoreError(f"store.url: expected {SQLITE}PATH or {POSTGRESQL}USER@HOST/NAME")


def find_secret_file(url: str) -> Path | None:
    """Return the file beside the store that has its secret key where the environment has none; None for a server."""
    return _sqlite_path(url).with_name(FILE_NAME) if url.startswith(SQLITE) else None


def _sqlite_path(url: str) -> Path:
    return Path(url.removeprefix(SQLITE)).expanduser()

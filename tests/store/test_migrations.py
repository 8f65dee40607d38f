"""A store that an earlier version wrote is brought up to date with its rows."""

import asyncio
import sqlite3
from dataclasses import dataclass

import asyncpg
from msgspec.structs import astuple, replace

from dragoman.store import open_store
from dragoman.store.postgres import migrations as postgres_schema
from dragoman.store.sqlite import migrations as sqlite_schema
from dragoman.store.usage_rows import UsageRow
from store.rows import EVER, row

# The columns of `usage` in the first release of the schema, in the order of UsageRow.
OLD_COLUMNS = (
    *("id", "began_ms", "request", "key", "client", "asked", "spoken", "provider", "model", "wanted", "stream"),
    *("input", "cached", "written", "output", "reasoning", "credits", "source", "cost_nano", "first_token_ms"),
    *("duration_ms", "result", "code", "losses", "attempts"),
)
OLD_STEPS = 3  # migrations of that version


@dataclass
class OldStore:
    """Return a store with the first version's schema and one usage row."""

    url: str

    async def write(self, usage: UsageRow) -> None:
        if self.url.startswith("sqlite"):
            self._write_sqlite(usage)
        else:
            await self._write_postgres(usage)

    def _write_sqlite(self, usage: UsageRow) -> None:
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
        for statements in sqlite_schema.MIGRATIONS[:OLD_STEPS]:
            connection.executescript(statements)
        connection.execute(f"PRAGMA user_version = {OLD_STEPS}")
        places = ", ".join("?" * len(OLD_COLUMNS))
        connection.execute(f"INSERT INTO usage ({', '.join(OLD_COLUMNS)}) VALUES ({places})", _old_values(usage))
        connection.commit()
        connection.close()

    async def _write_postgres(self, usage: UsageRow) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(postgres_schema.VERSION_TABLE)
        for number, statements in enumerate(postgres_schema.MIGRATIONS[:OLD_STEPS], start=1):
            await connection.execute(statements)
            await connection.execute("INSERT INTO dragoman.schema_version VALUES ($1)", number)
        places = ", ".join(f"${place}" for place in range(1, len(OLD_COLUMNS) + 1))
        await connection.execute(
            f"INSERT INTO dragoman.usage ({', '.join(OLD_COLUMNS)}) VALUES ({places})", *_old_values(usage)
        )
        await connection.close()


def _old_values(usage: UsageRow) -> tuple[object, ...]:
    return astuple(usage)[: len(OLD_COLUMNS)]


def test_usage_of_an_earlier_version_is_read_under_the_new_names(store_url: str) -> None:
    async def scenario() -> None:
        await OldStore(store_url).write(row(1))
        store = await open_store(store_url)
        await store.append_usage([row(2)])
        assert await store.usage_rows(EVER) == (replace(row(1), rounds=1, web_searches=0, web_fetches=0), row(2))
        await store.close()

    asyncio.run(scenario())

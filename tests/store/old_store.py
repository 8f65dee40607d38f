"""Make a store as an earlier version of the schema had it."""

from collections.abc import Sequence

import apsw
import asyncpg

from dragoman.store import postgres_migrations as postgres_schema
from dragoman.store import sqlite_migrations as sqlite_schema
from dragoman.store.usage_rows import COLUMNS

Values = Sequence[object]
COLUMNS_BEFORE_RUNS = COLUMNS[: COLUMNS.index("run")]


async def write_old_store(url: str, version: int, columns: Sequence[str], rows: Sequence[Values]) -> None:
    """Write the first columns of usage rows into a new store that has only the first migrations."""
    rows = [values[: len(columns)] for values in rows]
    if url.startswith("sqlite"):
        _write_sqlite(url, version, columns, rows)
    else:
        await _write_postgres(url, version, columns, rows)


async def run_on_old_store(url: str, version: int, statements: Sequence[str]) -> None:
    """Run statements on a new store that has only the first migrations."""
    await write_old_store(url, version, ("id",), ())
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        for statement in statements:
            connection.execute(statement)
        connection.close()
    else:
        server = await asyncpg.connect(url)
        for statement in statements:
            await server.execute(statement)
        await server.close()


def find_version(marker: str) -> int:
    """Return the version before the migration that has this text, which is the same for both databases."""
    versions = {
        next(number for number, statements in enumerate(migrations) if marker in statements)
        for migrations in (sqlite_schema.MIGRATIONS, postgres_schema.MIGRATIONS)
    }
    [version] = versions
    return version


def _write_sqlite(url: str, version: int, columns: Sequence[str], rows: Sequence[Values]) -> None:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    for statements in sqlite_schema.MIGRATIONS[:version]:
        connection.execute(statements)
    connection.pragma("user_version", version)
    places = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO usage ({', '.join(columns)}) VALUES ({places})", rows)
    connection.close()


async def _write_postgres(url: str, version: int, columns: Sequence[str], rows: Sequence[Values]) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(postgres_schema.VERSION_TABLE)
    for number, statements in enumerate(postgres_schema.MIGRATIONS[:version], start=1):
        await connection.execute(statements)
        await connection.execute("INSERT INTO dragoman.schema_version VALUES ($1)", number)
    places = ", ".join(f"${place}" for place in range(1, len(columns) + 1))
    await connection.executemany(
        f"INSERT INTO dragoman.usage ({', '.join(columns)}) VALUES ({places})", [tuple(values) for values in rows]
    )
    await connection.close()

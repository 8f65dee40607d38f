"""How long the queries of the admin API take with a million usage rows: `python -m bench.admin_queries`.

It fills a SQLite file and, if `--postgres URL` names a database, PostgreSQL, and prints a table of the median of
several runs of each query. The goal is 200 ms. What `--directory` names keeps the file for the next time.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

import apsw
import asyncpg
from msgspec.structs import replace

from dragoman.operate.usage.request_filter import parse_filter
from dragoman.operate.usage.series import Step, TimeSteps, read_series, read_speed
from dragoman.operate.usage.usage_writer import DAY_MS
from dragoman.store import Store, StoreError, open_store
from dragoman.store import postgres_migrations as postgres_schema
from dragoman.store import sqlite_migrations as sqlite_schema
from dragoman.store.usage_rows import COLUMNS, GroupBy, UsageSpan, first_id

ROWS = 1_000_000
DAYS = 90
END_MS = 1_794_787_200_000  # 2026-11-16
START_MS = END_MS - DAYS * DAY_MS
STEP_MS = DAYS * DAY_MS // ROWS
GOAL_MS = 200.0
RUNS = 5
KEYS, MODELS, CLIENTS, PROVIDERS = 50, 20, 5, 5

# Numbers that look random, the same in both databases: n is the number of the row.
VALUES = {
    "time_ms": f"{START_MS} + n * {STEP_MS}",
    "request_id": "'req_' || n",
    "key": f"'key_' || (n * 7919 % {KEYS})",
    "client": f"'client-' || (n * 104729 % {CLIENTS})",
    "client_protocol": "'messages'",
    "upstream_protocol": "'chat'",
    "provider": f"'provider-' || (n * 1299709 % {MODELS} % {PROVIDERS})",
    "model": f"'model-' || (n * 1299709 % {MODELS})",
    "requested_model": "'claude'",
    "credits": "0.1",
    "usage_source": "'reported'",
    "cost_nano_usd": "n * 31 % 9999999",
    "ttft_ms": "100 + n * 37 % 4000",
    "duration_ms": "5000 + n * 41 % 20000",
    "outcome": "CASE WHEN n % 33 = 0 THEN 'lost' WHEN n % 499999 = 0 THEN 'corrupt' ELSE 'ok' END",
    "error_code": "NULL",
    "run": "''",
    "client_request_id": "''",
    **dict.fromkeys(("session", "agent", "parent_agent", "user_name", "team", "tags", "lease"), "''"),
    **dict.fromkeys(("cache_possible_tokens", "cache_miss", "cache_miss_path", "cache_saved_nano_usd"), "NULL"),
}
NOW = datetime.fromtimestamp(END_MS / 1000, UTC)
GROUPS_WITH_SUMS: tuple[GroupBy, ...] = ("all", "model", "key", "client", "provider", "user", "team")
FILTERS = (
    *("", "outcome:!ok", "outcome:corrupt", "route:provider-1/*", "key:key_7", "key:key_7 outcome:corrupt"),
    *("request_id:req_5", "ttft>4s cost>0.009", "model:nothing", "after:2h", "client:client-1 duration>24s"),
    *("key:nothing", "before:80d outcome:!ok", 'key:"name 1*"'),
)
OLD_SUMS = ("DROP TABLE {}usage_sums", "DROP TABLE {}usage_ttft")

Query = Callable[[Store], Awaitable[object]]


def make_select(id_expression: str, truth: str, source: str) -> str:
    values = [
        VALUES.get(name, {"id": id_expression, "stream": truth}.get(name, "n % 1000")) for name in COLUMNS
    ]  # tokens and other counts are small numbers
    return f"SELECT {', '.join(values)} FROM {source}"  # noqa: S608


def fill_sqlite(path: Path) -> None:
    connection = apsw.Connection(str(path))
    if connection.execute("SELECT count(*) FROM usage").fetchone() == (ROWS,):
        return
    for statement in OLD_SUMS:
        connection.execute(statement.format(""))
    numbers = f"(WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {ROWS - 1}) SELECT n FROM c)"  # noqa: S608
    select = make_select(f"unhex(printf('%012X%020d', {VALUES['time_ms']}, n))", "n % 2", numbers)
    connection.execute(f"INSERT INTO usage ({', '.join(COLUMNS)}) {select}")
    connection.execute(find_sums(sqlite_schema.MIGRATIONS))
    connection.close()


async def fill_postgres(url: str) -> None:
    connection = await asyncpg.connect(url)
    if await connection.fetchval("SELECT count(*) FROM dragoman.usage") == ROWS:
        return
    for statement in OLD_SUMS:
        await connection.execute(statement.format("dragoman."))
    numbers = f"generate_series(0, {ROWS - 1}::bigint) AS n"
    row_id = f"decode(lpad(to_hex({VALUES['time_ms']}), 12, '0') || lpad(n::text, 20, '0'), 'hex')"
    select = make_select(row_id, "n % 2 = 0", numbers)
    await connection.execute(f"INSERT INTO dragoman.usage ({', '.join(COLUMNS)}) {select}")
    await connection.execute("ANALYZE dragoman.usage")
    await connection.execute(find_sums(postgres_schema.MIGRATIONS))
    await connection.close()


def find_sums(migrations: Sequence[str]) -> str:
    """Return the migration that adds up the rows."""
    return next(statements for statements in migrations if "usage_sums" in statements)


def search(text: str, after: bytes | None = None) -> Query:
    names = {f"key_{number}": f"name {number}" for number in range(KEYS)}
    found = replace(parse_filter(text, NOW, names), after=after)
    return lambda store: store.search_requests(found)


def series(span: UsageSpan, by: GroupBy, step: Step, zone: str = "UTC") -> Query:
    return lambda store: read_series(store, span, by, TimeSteps(step, ZoneInfo(zone), NOW))


def speed(span: UsageSpan) -> Query:
    return lambda store: read_speed(store, span)


def list_queries() -> Iterator[tuple[str, Query]]:
    for text in FILTERS:
        yield f"requests {text!r}", search(text)
    for place, number in (("middle", ROWS // 2), ("oldest", 150)):
        for text in ("", "outcome:!ok", "key:key_7", "client:client-1 duration>24s"):
            after = first_id(START_MS + number * STEP_MS)
            yield f"requests {text!r}, {place} page", search(text, after)
    for days in (1, 30, DAYS):
        span = UsageSpan(END_MS - days * DAY_MS - 123_456, END_MS + 1)
        for by in GROUPS_WITH_SUMS:
            for zone in ("UTC", "Europe/Berlin", "Asia/Kolkata"):
                yield f"usage of {days} days by {by}, days in {zone}", series(span, by, "day", zone)
            yield f"usage of {days} days by {by}, in all", series(span, by, "all")
        yield f"own usage of {days} days by model, hours", series(replace(span, key="key_7"), "model", "hour")
        yield f"speed of routes in {days} days", speed(span)


async def measure(url: str, fill: Callable[[], Awaitable[None]]) -> bool:
    """Print the figures of one store; return whether all are within the goal."""
    store = await open_store(url)
    await store.close()
    await fill()
    store = await open_store(url)
    print(
        f"{store.name}: {ROWS:,} rows\n\n| query | median ms | best ms | CPU of this process ms |\n|---|---:|---:|---:|"
    )
    are_quick = [await measure_query(store, name, query) for name, query in list_queries()]
    print(f"\n{sum(are_quick)} of {len(are_quick)} queries within {GOAL_MS:g} ms\n", flush=True)
    await store.close()
    return all(are_quick)


async def measure_query(store: Store, name: str, query: Query) -> bool:
    times, used = [], []
    for _ in range(RUNS):
        began, began_cpu = time.perf_counter(), time.process_time()
        try:
            await query(store)
        except StoreError as error:  # after two seconds
            print(f"  {name}: {error}", flush=True)
        times.append((time.perf_counter() - began) * 1000)
        used.append((time.process_time() - began_cpu) * 1000)
    is_quick = min(times) <= GOAL_MS
    figures = f"{statistics.median(times):.1f} | {min(times):.1f} | {statistics.median(used):.1f}"
    print(f"| {name}{'' if is_quick else ' TOO SLOW'} | {figures} |", flush=True)
    return is_quick


async def run(postgres_url: str | None, kept: Path | None) -> None:
    with TemporaryDirectory() as directory:
        file = (kept or Path(directory)) / "admin-queries.db"
        good = await measure(f"sqlite:///{file}", lambda: asyncio.to_thread(fill_sqlite, file))
    if postgres_url is not None:
        good = await measure(postgres_url, lambda: fill_postgres(postgres_url)) and good
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", metavar="URL")
    parser.add_argument("--directory", metavar="DIR", type=Path)
    options = parser.parse_args()
    asyncio.run(run(options.postgres, options.directory))

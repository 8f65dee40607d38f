"""How long the queries of the admin API take with a million usage rows: `python -m bench.admin_queries`.

It fills a SQLite file and, if `--postgres URL` names an empty database, PostgreSQL, and prints the slowest of several
runs of each query. The goal is 200 ms.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

import apsw
import asyncpg
from msgspec.structs import replace

from dragoman.accounts.usage_writer import DAY_MS
from dragoman.admin.request_filter import parse_filter
from dragoman.admin.usage_series import read_series, read_speed
from dragoman.store import Store, open_store
from dragoman.store.request_search import MAX_PAGE, PagePosition
from dragoman.store.usage_rows import COLUMNS, GroupBy, UsageSpan

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
}
BEFORE_SUMS = ("DROP TABLE {}usage_sums", "DROP TABLE {}usage_ttft")

Query = Callable[[Store], Awaitable[object]]


def make_select(id_expression: str, truth: str, source: str) -> str:
    values = [
        VALUES.get(name, {"id": id_expression, "stream": truth}.get(name, "n % 1000")) for name in COLUMNS
    ]  # tokens and other counts are small numbers
    return f"SELECT {', '.join(values)} FROM {source}"  # noqa: S608


def fill_sqlite(path: Path) -> None:
    connection = apsw.Connection(str(path))
    for statement in BEFORE_SUMS:
        connection.execute(statement.format(""))
    connection.pragma("user_version", int(connection.pragma("user_version")) - 1)
    numbers = f"(WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {ROWS - 1}) SELECT n FROM c)"  # noqa: S608
    select = make_select("CAST(printf('%016d', n) AS BLOB)", "n % 2", numbers)
    connection.execute(f"INSERT INTO usage ({', '.join(COLUMNS)}) {select}")
    connection.close()


async def fill_postgres(url: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in BEFORE_SUMS:
        await connection.execute(statement.format("dragoman."))
    await connection.execute(
        "DELETE FROM dragoman.schema_version WHERE version = (SELECT max(version) FROM dragoman.schema_version)"
    )
    numbers = f"generate_series(0, {ROWS - 1}::bigint) AS n"
    select = make_select("decode(lpad(n::text, 16, '0'), 'escape')", "n % 2 = 0", numbers)
    await connection.execute(f"INSERT INTO dragoman.usage ({', '.join(COLUMNS)}) {select}")
    await connection.execute("ANALYZE dragoman.usage")
    await connection.close()


def list_queries() -> Iterator[tuple[str, Query]]:
    now = datetime.fromtimestamp(END_MS / 1000, UTC)
    names = {f"key_{number}": f"name {number}" for number in range(KEYS)}
    middle = PagePosition(START_MS + ROWS // 2 * STEP_MS, b"")
    filters = (
        *("", "outcome:!ok", "outcome:corrupt", "route:provider-1/*", "key:key_7", "key:key_7 outcome:corrupt"),
        *("request_id:req_5", "ttft>4s cost>0.009", "model:nothing", "after:2h", "client:client-1 duration>24s"),
        *("key:nothing", "before:80d outcome:!ok", 'key:"name 1*"'),
    )
    for text in filters:
        search = parse_filter(text, now, names)
        yield f"requests {text!r}", lambda store, search=search: store.search_requests(search)  # type: ignore[misc]
    deep = replace(parse_filter("outcome:!ok", now, names), after=middle, limit=MAX_PAGE)
    yield "requests 'outcome:!ok', page in the middle", lambda store: store.search_requests(deep)
    spans = {"1 day": 1, "30 days": 30, "90 days": DAYS}
    zones = {"UTC": ZoneInfo("UTC"), "Berlin": ZoneInfo("Europe/Berlin"), "Kolkata": ZoneInfo("Asia/Kolkata")}
    groups: tuple[GroupBy, ...] = ("all", "model", "key", "client", "provider")
    for label, days in spans.items():
        span = UsageSpan(END_MS - days * DAY_MS - 123_456, END_MS + 1)
        own = replace(span, key="key_7")
        for by in groups:
            for where, zone in zones.items():
                yield (
                    f"usage of {label} by {by}, days in {where}",
                    lambda store, span=span, by=by, zone=zone: read_series(store, span, by, "day", zone, now),  # type: ignore[misc]
                )
            yield (
                f"usage of {label} by {by}, in all",
                lambda store, span=span, by=by: read_series(store, span, by, "all", zones["UTC"], now),  # type: ignore[misc]
            )
        yield (
            f"own usage of {label} by model, hours",
            lambda store, own=own: read_series(store, own, "model", "hour", zones["UTC"], now),  # type: ignore[misc]
        )
        yield f"speed of routes in {label}", lambda store, span=span: read_speed(store, span)  # type: ignore[misc]


async def measure(url: str, fill: Callable[[], Awaitable[None]]) -> bool:
    """Print the figures of one store; return whether all are within the goal."""
    store = await open_store(url)
    await store.close()
    await fill()
    began = time.perf_counter()
    store = await open_store(url)
    print(f"{store.name}: {ROWS:,} rows, summed in {time.perf_counter() - began:.1f} s")
    is_good = True
    for name, query in list_queries():
        times, used = [], []
        for _ in range(RUNS):
            began, began_cpu = time.perf_counter(), time.process_time()
            await query(store)
            times.append((time.perf_counter() - began) * 1000)
            used.append((time.process_time() - began_cpu) * 1000)
        is_slow = min(times) > GOAL_MS
        is_good = is_good and not is_slow
        figures = (
            f"{statistics.median(times):7.1f} ms  {min(times):7.1f} best  {statistics.median(used):7.1f} of CPU here"
        )
        print(f"  {figures}  {name}{'  TOO SLOW' if is_slow else ''}", flush=True)
    await store.close()
    return is_good


async def run(postgres_url: str | None) -> None:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "dragoman.db"
        good = await measure(f"sqlite:///{file}", lambda: asyncio.to_thread(fill_sqlite, file))
    if postgres_url is not None:
        good = await measure(postgres_url, lambda: fill_postgres(postgres_url)) and good
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", metavar="URL")
    asyncio.run(run(parser.parse_args().postgres))

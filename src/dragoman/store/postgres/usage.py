"""The SQL statements on usage in PostgreSQL: the rows of requests, the search among them, and their sums."""

import re
from collections.abc import AsyncIterator, Sequence

import asyncpg
from msgspec.structs import astuple, replace

from dragoman.store.rollup import (
    MAX_SUM,
    SUM_KEY,
    SUMS,
    TTFT_KEY,
    MovedPart,
    SumDialect,
    SumQuery,
    add_ttft_counts,
    build_statement,
    clip,
    cover,
    cover_ttft,
    merge,
    roll_up,
    take_back,
    widen,
)
from dragoman.store.usage_rows import (
    COLUMNS,
    MAX_EXAMINED,
    RequestPage,
    RequestSearch,
    SearchDialect,
    UsageRow,
    UsageSpan,
    UsageSum,
    filter_all,
    first_id,
    make_page,
    narrow,
)

TEXTS = frozenset(
    {"request_id", "key", "client", "client_protocol", "upstream_protocol", "provider", "model", "requested_model"}
    | {"usage_source", "outcome", "error_code", "run"}
)
ARRAY_TYPES = dict.fromkeys(TEXTS, "text") | {"id": "bytea", "stream": "boolean", "credits": "double precision"}
ARRAYS = ", ".join(f"${place}::{ARRAY_TYPES.get(name, 'bigint')}[]" for place, name in enumerate(COLUMNS, start=1))
INSERT_USAGE = f"""
    INSERT INTO dragoman.usage ({", ".join(COLUMNS)}) SELECT * FROM unnest({ARRAYS})
    ON CONFLICT (id) DO NOTHING RETURNING id
"""  # noqa: S608 - names of our own fields
REMOVE_USAGE = f"""
    DELETE FROM dragoman.usage WHERE id IN (
        SELECT id FROM dragoman.usage WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING {", ".join(COLUMNS)}
"""  # noqa: S608 - names of our own fields
SELECT_USAGE = f"""
    SELECT {", ".join(COLUMNS)}
    FROM dragoman.usage WHERE id >= $1 AND id < $2 AND ($3::text IS NULL OR key = $3) ORDER BY id
"""  # noqa: S608 - names of our own fields


async def append_usage(connection: asyncpg.Connection, rows: Sequence[UsageRow]) -> None:
    if not rows:
        return
    async with connection.transaction():
        added = await connection.fetch(INSERT_USAGE, *zip(*map(astuple, rows), strict=True))
        ids = {bytes(id) for (id,) in added}
        # A row that exists already is not counted again.
        await add_rows(connection, [row for row in {row.id: row for row in reversed(rows)}.values() if row.id in ids])


async def remove_usage(connection: asyncpg.Connection, before_ms: int, limit: int) -> int:
    async with connection.transaction():
        removed = [UsageRow(*columns) for columns in await connection.fetch(REMOVE_USAGE, first_id(before_ms), limit)]
        await subtract_rows(connection, removed)
    return len(removed)


async def list_usage(connection: asyncpg.Connection, span: UsageSpan) -> tuple[UsageRow, ...]:
    found = await connection.fetch(SELECT_USAGE, first_id(span.since_ms), first_id(span.until_ms), span.key)
    return tuple(UsageRow(*columns) for columns in found)


SPECIAL = re.compile(r"([\\%_])")


def _make_pattern(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text).replace("*", "%")


SEARCH_DIALECT = SearchDialect("LIKE", _make_pattern, lambda place: f"${place}")
ORDER = "ORDER BY id DESC"


async def search_requests(connection: asyncpg.Connection, search: RequestSearch) -> RequestPage:
    """Return a page of requests."""
    last = await _find_last_examined(connection, search) if search.conditions else None
    statement = filter_all(search, last, SEARCH_DIALECT)
    found = await connection.fetch(
        f"SELECT {', '.join(COLUMNS)} FROM dragoman.usage WHERE {statement.where}"  # noqa: S608 - names of our own fields
        f" {ORDER} LIMIT {search.limit:d}",
        *statement.values,
    )
    return make_page(search, tuple(UsageRow(*columns) for columns in found), last)


async def _find_last_examined(connection: asyncpg.Connection, search: RequestSearch) -> bytes | None:
    statement = narrow(search, SEARCH_DIALECT)
    found = await connection.fetchrow(
        f"SELECT id FROM dragoman.usage WHERE {statement.where} {ORDER} LIMIT 1 OFFSET {MAX_EXAMINED}",  # noqa: S608
        *statement.values,
    )
    return bytes(found[0]) if found else None


PLACES = ", ".join(f"${place}" for place in range(1, 6 + len(SUMS)))
INCREASED = ", ".join(f"{name} = least(old.{name}::numeric + excluded.{name}, {MAX_SUM})" for name in SUMS)
ADD_SUMS = f"""
    INSERT INTO dragoman.usage_sums AS old ({SUM_KEY}, {", ".join(SUMS)}) VALUES ({PLACES})
    ON CONFLICT ({SUM_KEY}) DO UPDATE SET {INCREASED}
"""  # noqa: S608 - names of our own fields
ADD_TTFT = f"""
    INSERT INTO dragoman.usage_ttft AS old ({TTFT_KEY}, requests) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT ({TTFT_KEY}) DO UPDATE SET requests = old.requests + excluded.requests
"""  # noqa: S608 - names of our own fields
REMOVE_EMPTY = f"DELETE FROM dragoman.usage_sums WHERE ({SUM_KEY}) = ($1, $2, $3, $4, $5) AND requests <= 0"  # noqa: S608
REMOVE_EMPTY_TTFT = f"DELETE FROM dragoman.usage_ttft WHERE ({TTFT_KEY}) = ($1, $2, $3, $4, $5) AND requests <= 0"  # noqa: S608
TOTALS = ", ".join(f"sum({name})::{'double precision' if name == 'credits' else 'bigint'}" for name in SUMS)
SELECT_SUMS = f"""
    SELECT {{group}} AS grouped_by, {{step}} AS step, {TOTALS}
    FROM (SELECT *, slot * level AS began_ms FROM dragoman.usage_sums
          WHERE dimension = $1 AND owner = $2 AND ($3::text IS NULL OR grouped = $3) AND {{slots}}) AS found
    GROUP BY grouped_by, step
"""  # noqa: S608 - names of our own fields
SELECT_TTFT = """
    SELECT route, bucket, sum(requests)::bigint FROM dragoman.usage_ttft
    WHERE owner = $1 AND level = $2 AND slot >= $3 AND slot < $4 GROUP BY route, bucket
"""
EDGE = "SELECT id FROM dragoman.usage"  # min(id) would need PostgreSQL 18: id is a bytea
SUM_ROWS = """
    SELECT CASE $4::text WHEN 'model' THEN provider || '/' || model WHEN 'key' THEN key WHEN 'client' THEN client
            WHEN 'provider' THEN provider ELSE '' END AS grouped_by,
        {step} AS step,
        count(*),
        count(*) FILTER (WHERE outcome NOT IN ('ok', 'client_gone')),
        count(*) FILTER (WHERE outcome = 'client_gone'),
        coalesce(sum(input_tokens), 0)::bigint,
        coalesce(sum(cache_read_tokens), 0)::bigint, coalesce(sum(cache_write_tokens), 0)::bigint,
        coalesce(sum(output_tokens), 0)::bigint, coalesce(sum(reasoning_tokens), 0)::bigint,
        coalesce(sum(credits), 0)::double precision, coalesce(sum(cost_nano_usd), 0)::bigint,
        count(cost_nano_usd), count(usage_source),
        count(*) FILTER (WHERE usage_source = 'derived'),
        count(*) FILTER (WHERE usage_source = 'estimated'),
        coalesce(sum(input_tokens + output_tokens) FILTER (WHERE usage_source = 'estimated'), 0)::bigint,
        sum(duration_ms)::bigint, sum(web_searches)::bigint, sum(web_fetches)::bigint,
        coalesce(sum(output_tokens) FILTER (WHERE duration_ms > ttft_ms), 0)::bigint,
        coalesce(sum(duration_ms - ttft_ms)
            FILTER (WHERE duration_ms > ttft_ms AND output_tokens IS NOT NULL), 0)::bigint
    FROM (SELECT *, time_ms AS began_ms FROM dragoman.usage
          WHERE id >= $1 AND id < $2 AND ($3::text IS NULL OR key = $3)) AS found
    GROUP BY grouped_by, step
"""
SUM_DIALECT = SumDialect(
    SELECT_SUMS,
    SUM_ROWS,
    slots_in_range="level = $4 AND slot >= $5 AND slot < $6",
    slots_in_list="(level, slot) IN (SELECT * FROM unnest($4::bigint[], $5::bigint[]))",
    provider="split_part(grouped, '/', 1)",
    list_slots=lambda slots: tuple(zip(*slots, strict=True)),
)


async def add_rows(connection: asyncpg.Connection, rows: Sequence[UsageRow]) -> None:
    """Count rows that were just added; the caller holds the write lock."""
    rollup = roll_up(rows)
    await connection.executemany(ADD_SUMS, [(*astuple(key), *values) for key, values in rollup.sums])
    await connection.executemany(ADD_TTFT, [(*astuple(key), number) for key, number in rollup.ttft])


async def subtract_rows(connection: asyncpg.Connection, rows: Sequence[UsageRow]) -> None:
    """Forget rows that were just removed; the caller holds the write lock."""
    rollup = roll_up(rows, sign=-1)
    await connection.executemany(ADD_SUMS, [(*astuple(key), *values) for key, values in rollup.sums])
    await connection.executemany(REMOVE_EMPTY, [astuple(key) for key, _ in rollup.sums])
    await connection.executemany(ADD_TTFT, [(*astuple(key), number) for key, number in rollup.ttft])
    await connection.executemany(REMOVE_EMPTY_TTFT, [astuple(key) for key, _ in rollup.ttft])


async def sum_usage(connection: asyncpg.Connection, query: SumQuery) -> tuple[UsageSum, ...]:
    return merge([part async for part in _read_parts(connection, query)])


async def count_ttft(connection: asyncpg.Connection, query: SumQuery) -> dict[str, dict[int, int]]:
    """Return the number of requests by route and bucket, of all quarters of an hour that the time touches."""
    slots = cover_ttft(query)
    return add_ttft_counts([row for values in slots for row in await connection.fetch(SELECT_TTFT, *values)])


async def _read_parts(connection: asyncpg.Connection, query: SumQuery) -> AsyncIterator[UsageSum]:
    for part in cover(await _fit(connection, query)):
        statement, values = build_statement(query, part, SUM_DIALECT)
        for columns in await connection.fetch(statement, *values):
            found = UsageSum(*columns)
            yield found
            if isinstance(part, MovedPart):
                yield take_back(found, query)


async def _fit(connection: asyncpg.Connection, query: SumQuery) -> SumQuery:
    """Return the query with no more time than there are rows, and whole quarters of an hour where no row is between."""
    first, last = await connection.fetchrow(f"SELECT ({EDGE} ORDER BY id LIMIT 1), ({EDGE} ORDER BY id DESC LIMIT 1)")
    query = clip(query, first, last)
    if query.since_ms >= query.until_ms:
        return query
    whole = widen(query)
    is_free = "SELECT NOT EXISTS (SELECT FROM dragoman.usage WHERE id >= $1 AND id < $2)"
    before = await connection.fetchval(is_free, first_id(whole.since_ms), first_id(query.since_ms))
    after = await connection.fetchval(is_free, first_id(query.until_ms), first_id(whole.until_ms))
    return replace(
        query,
        since_ms=whole.since_ms if before else query.since_ms,
        until_ms=whole.until_ms if after else query.until_ms,
    )

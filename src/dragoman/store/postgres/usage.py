"""The table of usage on PostgreSQL."""

from collections.abc import Sequence

import asyncpg
from msgspec.structs import astuple

from dragoman.store.usage_rows import COLUMNS, SLOT_MS, By, Span, UsageRow, UsageSum

PLACES = ", ".join(f"${place}" for place in range(1, len(COLUMNS) + 1))
INSERT = f"""
    INSERT INTO dragoman.usage ({", ".join(COLUMNS)}) VALUES ({PLACES})
    ON CONFLICT (id) DO NOTHING
"""  # noqa: S608 - names of our own fields
REMOVE = """
    DELETE FROM dragoman.usage WHERE id IN (
        SELECT id FROM dragoman.usage WHERE time_ms < $1 ORDER BY time_ms LIMIT $2 FOR UPDATE SKIP LOCKED
    )
"""
ROWS = f"""
    SELECT {", ".join(COLUMNS)}
    FROM dragoman.usage WHERE time_ms >= $1 AND time_ms < $2 AND ($3::text IS NULL OR key = $3) ORDER BY time_ms, id
"""  # noqa: S608 - names of our own fields
SUMS = """
    SELECT CASE $4::text WHEN 'model' THEN provider || '/' || model WHEN 'key' THEN key WHEN 'client' THEN client
            WHEN 'provider' THEN provider ELSE '' END AS grouped,
        time_ms / $5::bigint AS slot,
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
        sum(duration_ms)::bigint
    FROM dragoman.usage WHERE time_ms >= $1 AND time_ms < $2 AND ($3::text IS NULL OR key = $3)
    GROUP BY grouped, slot
"""


async def append(connection: asyncpg.Connection, rows: Sequence[UsageRow]) -> None:
    await connection.executemany(INSERT, [astuple(row) for row in rows])


async def remove(connection: asyncpg.Connection, before_ms: int, most: int) -> int:
    done: str = await connection.execute(REMOVE, before_ms, most)
    return int(done.removeprefix("DELETE "))


async def rows(connection: asyncpg.Connection, span: Span) -> tuple[UsageRow, ...]:
    found = await connection.fetch(ROWS, span.since_ms, span.until_ms, span.key)
    return tuple(UsageRow(*columns) for columns in found)


async def sums(connection: asyncpg.Connection, span: Span, by: By) -> tuple[UsageSum, ...]:
    found = await connection.fetch(SUMS, span.since_ms, span.until_ms, span.key, by, SLOT_MS)
    # Sorted here, where text sorts the same whatever the database's collation.
    return tuple(sorted((UsageSum(*columns) for columns in found), key=lambda part: (part.group, part.slot)))

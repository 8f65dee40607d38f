"""The table of usage on SQLite."""

from collections.abc import Sequence
from itertools import chain

import apsw
from msgspec.structs import astuple, replace

from dragoman.store.usage_rows import COLUMNS, SLOT_MS, By, Span, UsageRow, UsageSum

INSERT = """
    INSERT INTO usage ({columns}) VALUES {places}
    ON CONFLICT (id) DO NOTHING
"""
PLACES = f"({', '.join('?' * len(COLUMNS))})"
STREAM = COLUMNS.index("stream")
TOGETHER = 50  # rows in one statement: each statement asks for the interpreter's lock anew
INSERT_ONE, INSERT_MANY = (
    INSERT.format(columns=", ".join(COLUMNS), places=", ".join([PLACES] * count)) for count in (1, TOGETHER)
)
REMOVE = "DELETE FROM usage WHERE id IN (SELECT id FROM usage WHERE time_ms < ? ORDER BY time_ms LIMIT ?)"
ROWS = f"""
    SELECT {", ".join(COLUMNS)}
    FROM usage WHERE time_ms >= ?1 AND time_ms < ?2 AND (?3 IS NULL OR key = ?3) ORDER BY time_ms, id
"""  # noqa: S608 - names of our own fields
SUMS = """
    SELECT CASE ?4 WHEN 'model' THEN provider || '/' || model WHEN 'key' THEN key WHEN 'client' THEN client
            WHEN 'provider' THEN provider ELSE '' END AS grouped,
        time_ms / ?5 AS slot,
        count(*),
        count(*) FILTER (WHERE outcome NOT IN ('ok', 'client_gone')),
        count(*) FILTER (WHERE outcome = 'client_gone'),
        coalesce(sum(input_tokens), 0), coalesce(sum(cache_read_tokens), 0), coalesce(sum(cache_write_tokens), 0),
        coalesce(sum(output_tokens), 0), coalesce(sum(reasoning_tokens), 0),
        total(credits), coalesce(sum(cost_nano_usd), 0), count(cost_nano_usd), count(usage_source),
        count(*) FILTER (WHERE usage_source = 'derived'),
        count(*) FILTER (WHERE usage_source = 'estimated'),
        coalesce(sum(input_tokens + output_tokens) FILTER (WHERE usage_source = 'estimated'), 0),
        sum(duration_ms)
    FROM usage WHERE time_ms >= ?1 AND time_ms < ?2 AND (?3 IS NULL OR key = ?3)
    GROUP BY grouped, slot ORDER BY grouped, slot
"""


def append(connection: apsw.Connection, rows: Sequence[UsageRow]) -> None:
    whole = len(rows) - len(rows) % TOGETHER
    for start in range(0, whole, TOGETHER):
        connection.execute(INSERT_MANY, list(chain.from_iterable(map(astuple, rows[start : start + TOGETHER]))))
    connection.executemany(INSERT_ONE, [astuple(row) for row in rows[whole:]])


def remove(connection: apsw.Connection, before_ms: int, most: int) -> int:
    connection.execute(REMOVE, (before_ms, most))
    return connection.changes()


def rows(connection: apsw.Connection, span: Span) -> tuple[UsageRow, ...]:
    found = connection.execute(ROWS, (span.since_ms, span.until_ms, span.key))
    return tuple(replace(UsageRow(*columns), stream=bool(columns[STREAM])) for columns in found)


def sums(connection: apsw.Connection, span: Span, by: By) -> tuple[UsageSum, ...]:
    found = connection.execute(SUMS, (span.since_ms, span.until_ms, span.key, by, SLOT_MS))
    return tuple(UsageSum(*columns) for columns in found)

"""The SQL statements on usage in SQLite: the rows of requests, the search among them, and their sums."""

from collections.abc import Iterator, Sequence
from itertools import chain

import apsw
import msgspec
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

INSERT = f"INSERT INTO usage ({', '.join(COLUMNS)}) VALUES "  # noqa: S608 - names of our own fields
PLACES = f"({','.join('?' * len(COLUMNS))})"
STREAM = COLUMNS.index("stream")
# Each statement acquires the interpreter's lock once, so that many rows share one. By number of rows, largest first.
INSERT_USAGE = {count: INSERT + ",".join([PLACES] * count) for count in (100, 10, 1)}
INSERT_IF_NEW = f"{INSERT}{PLACES} ON CONFLICT (id) DO NOTHING"
REMOVE_USAGE = f"""
    DELETE FROM usage WHERE id IN (SELECT id FROM usage WHERE id < ? ORDER BY id LIMIT ?)
    RETURNING {", ".join(COLUMNS)}
"""  # noqa: S608 - names of our own fields
SELECT_USAGE = f"""
    SELECT {", ".join(COLUMNS)}
    FROM usage WHERE id >= ?1 AND id < ?2 AND (?3 IS NULL OR key = ?3) ORDER BY id
"""  # noqa: S608 - names of our own fields


def append_usage(connection: apsw.Connection, rows: Sequence[UsageRow]) -> None:
    start = 0
    added: list[UsageRow] = []
    for count, statement in INSERT_USAGE.items():
        while len(rows) - start >= count:
            added += _insert(connection, statement, rows[start : start + count])
            start += count
    add_rows(connection, added)


def _insert(connection: apsw.Connection, statement: str, rows: Sequence[UsageRow]) -> Sequence[UsageRow]:
    """Insert rows and return those that were not there before; only those are counted."""
    try:
        connection.execute(statement, list(chain.from_iterable(map(astuple, rows))))
        return rows
    except apsw.ConstraintError:  # rare: some are there already, since rows are appended again after an error
        return [row for row in rows if _insert_if_new(connection, row)]


def _insert_if_new(connection: apsw.Connection, row: UsageRow) -> bool:
    connection.execute(INSERT_IF_NEW, astuple(row))
    return connection.changes() > 0


def remove_usage(connection: apsw.Connection, before_ms: int, limit: int) -> int:
    removed = make_rows(connection.execute(REMOVE_USAGE, (first_id(before_ms), limit)))
    subtract_rows(connection, removed)
    return len(removed)


def make_rows(found: apsw.Cursor) -> tuple[UsageRow, ...]:
    return tuple(replace(UsageRow(*columns), stream=bool(columns[STREAM])) for columns in found)


def list_usage(connection: apsw.Connection, span: UsageSpan) -> tuple[UsageRow, ...]:
    found = connection.execute(SELECT_USAGE, (first_id(span.since_ms), first_id(span.until_ms), span.key))
    return make_rows(found)


def _make_pattern(text: str) -> str:
    return text.replace("[", "[[]").replace("?", "[?]")


SEARCH_DIALECT = SearchDialect("GLOB", _make_pattern, lambda place: f"?{place}")
ORDER = "ORDER BY id DESC"


def search_requests(connection: apsw.Connection, search: RequestSearch) -> RequestPage:
    """Return a page of requests."""
    last = _find_last_examined(connection, search) if search.conditions else None
    statement = filter_all(search, last, SEARCH_DIALECT)
    found = connection.execute(
        f"SELECT {', '.join(COLUMNS)} FROM usage WHERE {statement.where} {ORDER} LIMIT {search.limit:d}",  # noqa: S608
        statement.values,
    )
    return make_page(search, make_rows(found), last)


def _find_last_examined(connection: apsw.Connection, search: RequestSearch) -> bytes | None:
    statement = narrow(search, SEARCH_DIALECT)
    found = connection.execute(
        f"SELECT id FROM usage WHERE {statement.where} {ORDER} LIMIT 1 OFFSET {MAX_EXAMINED}",  # noqa: S608
        statement.values,
    ).fetchone()
    return bytes(found[0]) if found else None


INCREASED = ", ".join(f"{name} = min({name} + excluded.{name}, {MAX_SUM})" for name in SUMS)
ADD_SUMS = f"""
    INSERT INTO usage_sums ({SUM_KEY}, {", ".join(SUMS)}) VALUES ({", ".join("?" * (5 + len(SUMS)))})
    ON CONFLICT ({SUM_KEY}) DO UPDATE SET {INCREASED}
"""  # noqa: S608 - names of our own fields
ADD_TTFT = f"""
    INSERT INTO usage_ttft ({TTFT_KEY}, requests) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT ({TTFT_KEY}) DO UPDATE SET requests = requests + excluded.requests
"""  # noqa: S608 - names of our own fields
REMOVE_EMPTY = f"DELETE FROM usage_sums WHERE ({SUM_KEY}) = (?, ?, ?, ?, ?) AND requests <= 0"  # noqa: S608
REMOVE_EMPTY_TTFT = f"DELETE FROM usage_ttft WHERE ({TTFT_KEY}) = (?, ?, ?, ?, ?) AND requests <= 0"  # noqa: S608
SELECT_SUMS = f"""
    SELECT {{group}} AS grouped_by, {{step}} AS step, {", ".join(f"sum({name})" for name in SUMS)}
    FROM (SELECT *, slot * level AS began_ms FROM usage_sums
          WHERE dimension = ?1 AND owner = ?2 AND (?3 IS NULL OR grouped = ?3) AND {{slots}})
    GROUP BY grouped_by, step
"""  # noqa: S608 - names of our own fields
SELECT_TTFT = """
    SELECT route, bucket, sum(requests) FROM usage_ttft WHERE owner = ? AND level = ? AND slot >= ? AND slot < ?
    GROUP BY route, bucket
"""
SUM_ROWS = """
    SELECT CASE ?4 WHEN 'model' THEN provider || '/' || model WHEN 'key' THEN key WHEN 'client' THEN client
            WHEN 'provider' THEN provider ELSE '' END AS grouped_by,
        {step} AS step,
        count(*),
        count(*) FILTER (WHERE outcome NOT IN ('ok', 'client_gone')),
        count(*) FILTER (WHERE outcome = 'client_gone'),
        coalesce(sum(input_tokens), 0), coalesce(sum(cache_read_tokens), 0), coalesce(sum(cache_write_tokens), 0),
        coalesce(sum(output_tokens), 0), coalesce(sum(reasoning_tokens), 0),
        total(credits), coalesce(sum(cost_nano_usd), 0), count(cost_nano_usd), count(usage_source),
        count(*) FILTER (WHERE usage_source = 'derived'),
        count(*) FILTER (WHERE usage_source = 'estimated'),
        coalesce(sum(input_tokens + output_tokens) FILTER (WHERE usage_source = 'estimated'), 0),
        sum(duration_ms), sum(web_searches), sum(web_fetches),
        coalesce(sum(output_tokens) FILTER (WHERE duration_ms > ttft_ms), 0),
        coalesce(sum(duration_ms - ttft_ms) FILTER (WHERE duration_ms > ttft_ms AND output_tokens IS NOT NULL), 0)
    FROM (SELECT *, time_ms AS began_ms FROM usage WHERE id >= ?1 AND id < ?2 AND (?3 IS NULL OR key = ?3))
    GROUP BY grouped_by, step
"""
SUM_DIALECT = SumDialect(
    SELECT_SUMS,
    SUM_ROWS,
    slots_in_range="level = ?4 AND slot >= ?5 AND slot < ?6",
    slots_in_list="(level, slot) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?4))",
    provider="substr(grouped, 1, instr(grouped, '/') - 1)",
    list_slots=lambda slots: (msgspec.json.encode(slots).decode(),),
)


def add_rows(connection: apsw.Connection, rows: Sequence[UsageRow]) -> None:
    """Count rows that were just added; the caller holds the write lock."""
    rollup = roll_up(rows)
    connection.executemany(ADD_SUMS, [(*astuple(key), *values) for key, values in rollup.sums])
    connection.executemany(ADD_TTFT, [(*astuple(key), number) for key, number in rollup.ttft])


def subtract_rows(connection: apsw.Connection, rows: Sequence[UsageRow]) -> None:
    """Forget rows that were just removed; the caller holds the write lock."""
    rollup = roll_up(rows, sign=-1)
    connection.executemany(ADD_SUMS, [(*astuple(key), *values) for key, values in rollup.sums])
    connection.executemany(REMOVE_EMPTY, [astuple(key) for key, _ in rollup.sums])
    connection.executemany(ADD_TTFT, [(*astuple(key), number) for key, number in rollup.ttft])
    connection.executemany(REMOVE_EMPTY_TTFT, [astuple(key) for key, _ in rollup.ttft])


def sum_usage(connection: apsw.Connection, query: SumQuery) -> tuple[UsageSum, ...]:
    return merge(_read_parts(connection, query))


def count_ttft(connection: apsw.Connection, query: SumQuery) -> dict[str, dict[int, int]]:
    """Return the number of requests by route and bucket, of all quarters of an hour that the time touches."""
    slots = cover_ttft(query)
    return add_ttft_counts(row for values in slots for row in connection.execute(SELECT_TTFT, values))


def _read_parts(connection: apsw.Connection, query: SumQuery) -> Iterator[UsageSum]:
    for part in cover(_fit(connection, query)):
        for columns in connection.execute(*build_statement(query, part, SUM_DIALECT)):
            found = UsageSum(*columns)
            yield found
            if isinstance(part, MovedPart):
                yield take_back(found, query)


def _fit(connection: apsw.Connection, query: SumQuery) -> SumQuery:
    """Return the query with no more time than there are rows, and whole quarters of an hour where no row is between."""
    [[first, last]] = connection.execute("SELECT (SELECT min(id) FROM usage), (SELECT max(id) FROM usage)")
    query = clip(query, first, last)
    if query.since_ms >= query.until_ms:
        return query
    whole = widen(query)
    is_free = "SELECT NOT EXISTS (SELECT 1 FROM usage WHERE id >= ? AND id < ?)"
    [[before]] = connection.execute(is_free, (first_id(whole.since_ms), first_id(query.since_ms)))
    [[after]] = connection.execute(is_free, (first_id(query.until_ms), first_id(whole.until_ms)))
    return replace(
        query,
        since_ms=whole.since_ms if before else query.since_ms,
        until_ms=whole.until_ms if after else query.until_ms,
    )

"""Usage: the rows of requests, the search among them, and their sums."""

# ruff: noqa: S608 - only names of our own columns are put into statements

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import astuple, replace

from dragoman.store.database import (
    NotUnique,
    Session,
    StorePart,
    Value,
    fetch_among,
    find,
    insert,
    list_places,
    queries,
    reads,
    writes,
)
from dragoman.store.rollup import (
    DAY_MS,
    MAX_SUM,
    SUM_KEY,
    SUMS,
    TTFT_KEY,
    WITHOUT_NONE,
    DaysPart,
    MovedPart,
    RollupPart,
    RowsPart,
    SumQuery,
    TimePart,
    add_ttft_counts,
    clip,
    count_rest,
    cover,
    cover_ttft,
    find_dimension,
    merge,
    roll_up,
    start_of_step,
    take_back,
    widen,
)
from dragoman.store.spending import carry_removed
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

STREAM = COLUMNS.index("stream")
ALL = ", ".join(COLUMNS)
REMOVE = f"""
    DELETE FROM dragoman.usage WHERE id IN (
        SELECT id FROM dragoman.usage WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING {ALL}
"""
SELECT_IDS = "SELECT id FROM dragoman.usage WHERE id IN ({among})"
SELECT_LEASES = "SELECT lease FROM dragoman.usage WHERE lease <> '' AND lease IN ({among})"
SELECT_SPAN = f"""
    SELECT {ALL} FROM dragoman.usage
    WHERE id >= $1 AND id < $2 AND ($3::text IS NULL OR key = $3) AND ($4::text IS NULL OR team = $4)
        AND ($5::text IS NULL OR user_name = $5) AND ($6::text IS NULL OR provider = $6)
    ORDER BY id
"""
NEWEST_FIRST = "ORDER BY id DESC"
EDGE = "SELECT id FROM dragoman.usage"  # min(id) would need PostgreSQL 18: id is a bytea
EDGES = f"SELECT ({EDGE} ORDER BY id LIMIT 1), ({EDGE} ORDER BY id DESC LIMIT 1)"
IS_FREE = "SELECT NOT EXISTS (SELECT 1 FROM dragoman.usage WHERE id >= $1 AND id < $2)"

INCREASED = ", ".join(f"{name} = least(old.{name}::numeric + excluded.{name}, {MAX_SUM})" for name in SUMS)
ADD_SUMS = f"""
    INSERT INTO dragoman.usage_sums AS old ({SUM_KEY}, {", ".join(SUMS)}) VALUES ({list_places(5 + len(SUMS))})
    ON CONFLICT ({SUM_KEY}) DO UPDATE SET {INCREASED}
"""
ADD_TTFT = f"""
    INSERT INTO dragoman.usage_ttft AS old ({TTFT_KEY}, requests) VALUES ({list_places(6)})
    ON CONFLICT ({TTFT_KEY}) DO UPDATE SET requests = old.requests + excluded.requests
"""
REMOVE_EMPTY = f"DELETE FROM dragoman.usage_sums WHERE ({SUM_KEY}) = ({list_places(5)}) AND requests <= 0"
REMOVE_EMPTY_TTFT = f"DELETE FROM dragoman.usage_ttft WHERE ({TTFT_KEY}) = ({list_places(5)}) AND requests <= 0"
TOTALS = ", ".join(f"sum({name})::{'double precision' if name == 'credits' else 'bigint'}" for name in SUMS)
SELECT_SUMS = f"""
    SELECT {{group}} AS grouped_by, {{step}} AS step, {TOTALS}
    FROM (SELECT *, slot * level AS began_ms FROM dragoman.usage_sums
          WHERE dimension = $1 AND owner = $2 AND ($3::text IS NULL OR grouped = $3) AND {{slots}}) AS found
    GROUP BY grouped_by, step
"""
SLOTS_IN_RANGE = "level = $4 AND slot >= $5 AND slot < $6"
SLOTS_IN_LIST = """
    (level, slot) IN (SELECT (value ->> 0)::bigint, (value ->> 1)::bigint FROM json_array_elements($4::json))
"""
PROVIDER = "substr(grouped, 1, strpos(grouped, '/') - 1)"  # of a group that is a route
SELECT_TTFT = """
    SELECT route, bucket, sum(requests)::bigint FROM dragoman.usage_ttft
    WHERE owner = $1 AND level = $2 AND slot >= $3 AND slot < $4 GROUP BY route, bucket
"""
TAGS = "(',' || tags || ',')"
AFTER_TAG = f"substr({TAGS}, strpos({TAGS}, $6::text) + length($6::text))"  # $6 is `,NAME=`
VALUE_OF_TAG = f"""
    CASE WHEN strpos({TAGS}, $6::text) > 0 THEN substr({AFTER_TAG}, 1, strpos({AFTER_TAG}, ',') - 1) ELSE '' END
"""
SUM_ROWS = f"""
    SELECT CASE $4::text WHEN 'model' THEN provider || '/' || model WHEN 'key' THEN key WHEN 'client' THEN client
            WHEN 'provider' THEN provider WHEN 'user' THEN user_name WHEN 'team' THEN team WHEN 'session' THEN session
            WHEN 'agent' THEN agent WHEN 'tag' THEN {VALUE_OF_TAG} ELSE '' END AS grouped_by,
        {{step}} AS step,
        count(*),
        count(*) FILTER (WHERE outcome NOT IN ('ok', 'client_gone')),
        count(*) FILTER (WHERE outcome = 'client_gone'),
        coalesce(sum(input_tokens), 0)::bigint,
        coalesce(sum(cache_read_tokens), 0)::bigint, coalesce(sum(cache_write_tokens), 0)::bigint,
        coalesce(sum(output_tokens), 0)::bigint, coalesce(sum(reasoning_tokens), 0)::bigint,
        coalesce(sum(credits), 0)::double precision, coalesce(sum(cost_nano_usd), 0)::bigint,
        count(cost_nano_usd), count(*) FILTER (WHERE usage_source IS NOT NULL OR cost_nano_usd IS NOT NULL),
        count(*) FILTER (WHERE usage_source = 'derived'),
        count(*) FILTER (WHERE usage_source = 'estimated'),
        coalesce(sum(input_tokens + output_tokens) FILTER (WHERE usage_source = 'estimated'), 0)::bigint,
        sum(duration_ms)::bigint, sum(web_searches)::bigint, sum(web_fetches)::bigint,
        coalesce(sum(cache_possible_tokens), 0)::bigint,
        coalesce(sum(least(cache_read_tokens, cache_possible_tokens))
            FILTER (WHERE cache_possible_tokens IS NOT NULL), 0)::bigint,
        coalesce(sum(cache_saved_nano_usd), 0)::bigint,
        coalesce(sum(output_tokens) FILTER (WHERE duration_ms > ttft_ms), 0)::bigint,
        coalesce(sum(duration_ms - ttft_ms)
            FILTER (WHERE duration_ms > ttft_ms AND output_tokens IS NOT NULL), 0)::bigint
    FROM (SELECT *, time_ms AS began_ms FROM dragoman.usage
          WHERE id >= $1 AND id < $2 AND ($3::text IS NULL OR key = $3) AND ($5::text IS NULL OR team = $5)
              AND ($7::text IS NULL OR user_name = $7) AND ($8::text IS NULL OR provider = $8)) AS found
    GROUP BY grouped_by, step
"""


class UsageTable(StorePart):
    async def append_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add all rows or none. A row whose id or lease exists already is not changed, nor counted again."""
        try:
            await self._append_new(rows)
        except NotUnique:  # rare: some are there already, since rows are appended again after an error
            await self._append_missing(rows)

    @writes
    async def _append_new(self, session: Session, rows: Sequence[UsageRow]) -> None:
        """Add rows none of which exists; raises NotUnique."""
        await session.lock("usage")  # sums of two gateways would wait for each other, or deadlock
        await _add_rows(session, rows)

    @writes
    async def _append_missing(self, session: Session, rows: Sequence[UsageRow]) -> None:
        await session.lock("usage")  # two gateways may append the same row
        unique = {row.id: row for row in reversed(rows)}
        existing = {*await fetch_among(session, bytes, SELECT_IDS, list(unique))}
        leases = {*await fetch_among(session, str, SELECT_LEASES, [row.lease for row in rows if row.lease])}
        new = []
        for id in reversed(unique):
            row = unique[id]
            if id not in existing and row.lease not in leases:
                new.append(row)
                leases |= {row.lease} - {""}
        await _add_rows(session, new)

    @writes
    async def remove_usage(self, session: Session, before_ms: int, limit: int) -> int:
        """Remove at most `limit` requests that began before this time, oldest first; return how many."""
        removed = await _fetch_rows(session, REMOVE, first_id(before_ms), limit)
        if not removed:
            return 0
        await carry_removed(session, removed)
        rollup = roll_up(removed, sign=-1)
        await session.execute_many(ADD_SUMS, [(*astuple(key), *values) for key, values in rollup.sums])
        await session.execute_many(REMOVE_EMPTY, [astuple(key) for key, _ in rollup.sums])
        await session.execute_many(ADD_TTFT, [(*astuple(key), number) for key, number in rollup.ttft])
        await session.execute_many(REMOVE_EMPTY_TTFT, [astuple(key) for key, _ in rollup.ttft])
        return len(removed)

    @reads
    async def read_usage_rows(self, session: Session, span: UsageSpan) -> tuple[UsageRow, ...]:
        """Return the requests that began in this span, oldest first."""
        ids = first_id(span.since_ms), first_id(span.until_ms)
        return await _fetch_rows(session, SELECT_SPAN, *ids, span.key, span.team, span.user, span.provider)

    @queries
    async def read_usage_sums(self, session: Session, query: SumQuery) -> tuple[UsageSum, ...]:
        """Return the sums of the requests that began in this time; those of a part of it if that has too many."""
        sums: list[UsageSum] = []
        for part in cover(await _fit(session, query)):
            statement, values = build_statement(query, part)
            found = await session.fetch(UsageSum, statement, *values)
            if query.most is not None and len(found) >= query.most:
                return tuple(found)
            if query.by in WITHOUT_NONE and (query.team, query.user) == (None, None) and not isinstance(part, RowsPart):
                statement, values = build_statement(replace(query, by="all"), part)
                found += count_rest(await session.fetch(UsageSum, statement, *values), list(found))
            sums += found
            if isinstance(part, MovedPart):
                sums += [take_back(moved, query) for moved in found]
        return merge(sums)

    @queries
    async def read_ttft_counts(self, session: Session, query: SumQuery) -> dict[str, dict[int, int]]:
        """Return the number of requests by route and bucket (store/rollup.py) of the time to the first token.

        All quarters of an hour that the time touches are counted.
        """
        found = [await session.fetch(_make_ttft, SELECT_TTFT, *slots) for slots in cover_ttft(query)]
        return add_ttft_counts(row for rows in found for row in rows)

    @queries
    async def search_requests(self, session: Session, search: RequestSearch) -> RequestPage:
        """Return a page of requests."""
        dialect = GLOB if session.is_sqlite else LIKE
        last = await _find_last_examined(session, search, dialect) if search.conditions else None
        found = filter_all(search, last, dialect)
        statement = f"SELECT {ALL} FROM dragoman.usage WHERE {found.where} {NEWEST_FIRST} LIMIT {search.limit:d}"
        return make_page(search, await _fetch_rows(session, statement, *found.values), last)


async def _add_rows(session: Session, rows: Sequence[UsageRow]) -> None:
    await insert(session, f"dragoman.usage ({ALL})", [astuple(row) for row in rows])
    rollup = roll_up(rows)
    await session.execute_many(ADD_SUMS, [(*astuple(key), *values) for key, values in rollup.sums])
    await session.execute_many(ADD_TTFT, [(*astuple(key), number) for key, number in rollup.ttft])


async def _find_last_examined(session: Session, search: RequestSearch, dialect: SearchDialect) -> bytes | None:
    found = narrow(search, dialect)
    statement = f"SELECT id FROM dragoman.usage WHERE {found.where} {NEWEST_FIRST} LIMIT 1 OFFSET {MAX_EXAMINED}"
    return await find(session, bytes, statement, *found.values)


async def _fetch_rows(session: Session, statement: str, *values: Value) -> tuple[UsageRow, ...]:
    rows = await session.fetch(UsageRow, statement, *values)
    return tuple(replace(row, stream=bool(row.stream)) for row in rows) if session.is_sqlite else tuple(rows)


async def _fit(session: Session, query: SumQuery) -> SumQuery:
    """Return the query with no more time than there are rows, and whole quarters of an hour where no row is between."""
    [(first, last)] = await session.fetch(_make_edges, EDGES)
    query = clip(query, first, last)
    if query.since_ms >= query.until_ms:
        return query
    whole = widen(query)
    [before] = await session.fetch(bool, IS_FREE, first_id(whole.since_ms), first_id(query.since_ms))
    [after] = await session.fetch(bool, IS_FREE, first_id(query.until_ms), first_id(whole.until_ms))
    return replace(
        query,
        since_ms=whole.since_ms if before else query.since_ms,
        until_ms=whole.until_ms if after else query.until_ms,
    )


def build_statement(query: SumQuery, part: TimePart) -> tuple[str, tuple[Value, ...]]:
    """Return the statement that reads one part of a query, and its values."""
    statement, values = _select_part(query, part)
    return (statement if query.most is None else f"{statement} LIMIT {query.most:d}"), values


def _select_part(query: SumQuery, part: TimePart) -> tuple[str, tuple[Value, ...]]:
    step = start_of_step(query, part)
    if isinstance(part, RowsPart):
        ids = first_id(part.since_ms), first_id(part.until_ms)
        others = query.team, f",{query.tag}=", query.user, query.provider
        return SUM_ROWS.format(step=step), (*ids, query.key, query.by, *others)
    found = find_dimension(query)
    assert found is not None  # else rows are read
    dimension, owner = found
    only = {"key": query.key, "user": query.user}.get(dimension, query.team)
    group = {"provider": PROVIDER, "all": "''"}.get(query.by, "grouped")
    slots: tuple[Value, ...]
    match part:
        case RollupPart(level, first, end):
            where, slots = SLOTS_IN_RANGE, (level, first, end)
        case DaysPart(first, end):
            where, slots = SLOTS_IN_RANGE, (DAY_MS, first, end)
        case MovedPart(listed):
            where, slots = SLOTS_IN_LIST, (msgspec.json.encode(listed).decode(),)
    return SELECT_SUMS.format(group=group, step=step, slots=where), (dimension, owner, only, *slots)


def _make_glob(text: str) -> str:
    return text.replace("[", "[[]").replace("?", "[?]")


def _make_like(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text).replace("*", "%")


GLOB, LIKE = SearchDialect("GLOB", _make_glob), SearchDialect("LIKE", _make_like)


def _make_ttft(route: str, bucket: int, requests: int) -> tuple[str, int, int]:
    return route, bucket, requests


def _make_edges(first: bytes | None, last: bytes | None) -> tuple[bytes | None, bytes | None]:
    return first, last

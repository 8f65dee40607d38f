"""What was spent in a scope and a window: the sums that meters begin with and are compared with.

Rows that `store.usage_days` removes are carried, by scope and quarter of an hour; those of more than some weeks ago
together, since only limits on all time ask for them. An adjustment forgives a part, for good or until some time.
"""

# ruff: noqa: S608 - only names of our own columns are put into statements

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from dragoman.store.audit import AuditRow, append_audit_row
from dragoman.store.database import Session, StorePart, queries, reads, writes
from dragoman.store.meter import MAX_AMOUNT, NANO, find_amount
from dragoman.store.rollup import RollupPart, SumQuery, cover
from dragoman.store.usage_rows import SLOT_MS, UsageRow

UNITS = ("usd", "tokens", "credits")
CARRIED_BY_SLOT_MS = 40 * 24 * 3600 * 1000  # more than a month
NO_SLOT = 0  # of what was carried for longer
FOREVER_MS = 10**14 // SLOT_MS * SLOT_MS

TOKENS = "coalesce(input_tokens, 0) - coalesce(cache_read_tokens, 0) + coalesce(output_tokens, 0)"
# One statement, so that all of it is of the same moment. $1: leases; $2 and $3: slots; $4 to $6: of the scope; $7: now.
SUM = f"""
    SELECT coalesce(sum(usd), 0)::bigint, coalesce(sum(tokens), 0)::bigint,
        coalesce(sum(credits), 0)::double precision, coalesce(sum(nano_credits), 0)::bigint
    FROM (
        {{kept}}
        UNION ALL
        SELECT -coalesce(cost_nano_usd, 0), -({TOKENS}), -coalesce(credits, 0), 0 FROM dragoman.usage
        WHERE lease <> '' AND lease IN (SELECT value ->> 0 FROM json_array_elements($1::json))
            AND time_ms >= $2::bigint * {SLOT_MS} AND time_ms < $3::bigint * {SLOT_MS} AND {{scope}}
        UNION ALL
        SELECT usd, tokens, 0, credits FROM dragoman.removed_spending
        WHERE kind = $4 AND name IN (SELECT value ->> 0 FROM json_array_elements($5::json))
            AND slot >= $2 AND slot < $3
        UNION ALL
        SELECT CASE unit WHEN 'usd' THEN amount ELSE 0 END, CASE unit WHEN 'tokens' THEN amount ELSE 0 END, 0,
            CASE unit WHEN 'credits' THEN amount ELSE 0 END
        FROM dragoman.adjustments
        WHERE scope = $6 AND time_ms >= $2::bigint * {SLOT_MS} AND time_ms < $3::bigint * {SLOT_MS} AND until_ms > $7
    ) AS found
"""
SUM_ROWS = f"""
    SELECT coalesce(cost_nano_usd, 0) AS usd, {TOKENS} AS tokens, coalesce(credits, 0) AS credits, 0 AS nano_credits
    FROM dragoman.usage WHERE time_ms >= $2::bigint * {SLOT_MS} AND time_ms < $3::bigint * {SLOT_MS} AND {{scope}}
"""
SUM_SLOTS = f"""
    SELECT cost_nano_usd AS usd, {TOKENS} AS tokens, credits, 0 AS nano_credits FROM dragoman.usage_sums
    WHERE owner = '*' AND {{grouped}} AND ({{slots}})
"""
SCOPES = {  # how rows of a scope are found; $5 has its names
    "all": "$4::text = 'all'",
    "key": "key IN (SELECT value ->> 0 FROM json_array_elements($5::json))",
    "provider": "provider IN (SELECT value ->> 0 FROM json_array_elements($5::json))",
    "user": "user_name <> '' AND user_name IN (SELECT value ->> 0 FROM json_array_elements($5::json))",
    "team": "team <> '' AND team IN (SELECT value ->> 0 FROM json_array_elements($5::json))",
}
GROUPS = {  # the scopes that sums are kept of
    "all": "dimension = 'all'",
    "key": "dimension = 'key' AND grouped IN (SELECT value ->> 0 FROM json_array_elements($5::json))",
    "provider": """dimension = 'model' AND substr(grouped, 1, strpos(grouped, '/') - 1)
        IN (SELECT value ->> 0 FROM json_array_elements($5::json))""",
}
CARRY = """
    INSERT INTO dragoman.removed_spending AS old (kind, name, slot, usd, tokens, credits)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (kind, name, slot) DO UPDATE
    SET usd = old.usd + excluded.usd, tokens = old.tokens + excluded.tokens, credits = old.credits + excluded.credits
"""
OLD_CARRIED = """
    SELECT kind, name, sum(usd)::bigint, sum(tokens)::bigint, sum(credits)::bigint FROM dragoman.removed_spending
    WHERE slot > 0 AND slot <= $1 GROUP BY kind, name
"""
REMOVE_OLD_CARRIED = "DELETE FROM dragoman.removed_spending WHERE slot > 0 AND slot <= $1"
SELECT_ADJUSTMENTS = """
    SELECT time_ms, scope, unit, amount, until_ms, reason, number FROM dragoman.adjustments
    WHERE number > $1 OR (until_ms > $2 AND until_ms <= $3) ORDER BY number
"""
ADD_ADJUSTMENT = """
    INSERT INTO dragoman.adjustments (time_ms, scope, unit, amount, until_ms, reason) VALUES ($1, $2, $3, $4, $5, $6)
"""


class SpendingQuery(Struct, frozen=True):
    """What to add up: requests of one scope that began in a time, without the rows of some leases.

    The time begins and ends at whole quarters of an hour, as the windows of all time zones do.
    """

    kind: str  # of the scope: "all", "team", "user", "key", "provider"
    names: tuple[str, ...]  # of the teams, users, keys or providers; none of "all"
    scope: str  # its name in counters
    unit: str
    start_ms: int
    end_ms: int
    now_ms: int  # adjustments end
    leases: tuple[str, ...] = ()


class SpendingAdjustment(Struct, frozen=True):
    """An amount added to what was spent in the windows that have its time; a negative one forgives."""

    time_ms: int
    scope: str  # its name in counters
    unit: str
    amount: int
    until_ms: int = FOREVER_MS  # afterwards it no longer counts
    reason: str = ""
    number: int = 0  # in the order in which they were made; given by the store


class SpendingTable(StorePart):
    @queries
    async def read_spending(self, session: Session, query: SpendingQuery) -> int:
        """Return what was spent, with adjustments. It may be negative."""
        return await sum_spending(session, query)

    @writes
    async def add_adjustment(
        self, session: Session, adjustment: SpendingAdjustment, audit: AuditRow | None = None
    ) -> None:
        await insert_adjustment(session, adjustment)
        await append_audit_row(session, audit)

    @reads
    async def read_adjustments(
        self, session: Session, after: int, since_ms: int, until_ms: int
    ) -> tuple[SpendingAdjustment, ...]:
        """Return the adjustments with a higher number, and those that ended after and until these times."""
        return tuple(await session.fetch(SpendingAdjustment, SELECT_ADJUSTMENTS, after, since_ms, until_ms))


class AdjustmentWatch:
    """Finds which sums adjustments have changed, whoever made them."""

    def __init__(self, table: SpendingTable, now_ms: int) -> None:
        self._table = table
        self._newest = 0
        self._until_ms = now_ms

    async def find_changed(self, now_ms: int) -> set[tuple[str, str]]:
        """Return scopes and units of which adjustments were made or have ended since the last call; all at first."""
        made = await self._table.read_adjustments(self._newest, self._until_ms, now_ms)
        self._until_ms = now_ms
        self._newest = max([self._newest, *(adjustment.number for adjustment in made)])
        return {(adjustment.scope, adjustment.unit) for adjustment in made}


async def insert_adjustment(session: Session, adjustment: SpendingAdjustment) -> None:
    """Add an adjustment in the transaction of another change, such as its line in the audit log."""
    made = adjustment
    values = (made.time_ms, made.scope, made.unit, made.amount, made.until_ms, made.reason)
    await session.execute(ADD_ADJUSTMENT, *values)


async def sum_spending(session: Session, query: SpendingQuery) -> int:
    """Return what was spent, with adjustments, in a session that others use too."""
    statement = _build_statement(query.kind, query.start_ms, query.end_ms)
    leases, names = _list_values(query.leases), _list_values(query.names or ("",))
    slots = query.start_ms // SLOT_MS, query.end_ms // SLOT_MS
    [(usd, tokens, credits, nano_credits)] = await session.fetch(
        _make_sums, statement, leases, *slots, query.kind, names, query.scope, query.now_ms
    )
    spent = {"usd": usd, "tokens": tokens}.get(query.unit, round(credits * NANO) + nano_credits)
    return min(spent, MAX_AMOUNT)


async def carry_removed(session: Session, rows: Sequence[UsageRow]) -> None:
    """Keep what rows that are removed have spent, by scope."""
    oldest = int(time.time() * 1000 - CARRIED_BY_SLOT_MS) // SLOT_MS
    sums: defaultdict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        slot = row.time_ms // SLOT_MS
        for kind, name in _list_scopes(row):
            _add(sums[kind, name, slot if slot > oldest else NO_SLOT], [find_amount(row, unit) for unit in UNITS])
    await session.lock("removed spending")
    for kind, name, *amounts in await session.fetch(_make_carried, OLD_CARRIED, oldest):
        _add(sums[kind, name, NO_SLOT], amounts)
    await session.execute(REMOVE_OLD_CARRIED, oldest)
    await session.execute_many(CARRY, [(*key, *amounts) for key, amounts in sorted(sums.items())])


def _add(total: list[int], amounts: Sequence[int]) -> None:
    for at, amount in enumerate(amounts):
        total[at] += amount


def _list_scopes(row: UsageRow) -> Iterator[tuple[str, str]]:
    yield "all", ""
    for kind, name in (("key", row.key), ("provider", row.provider), ("user", row.user), ("team", row.team)):
        if name:
            yield kind, name


def _build_statement(kind: str, start_ms: int, end_ms: int) -> str:
    scope = SCOPES[kind]
    if kind not in GROUPS:
        return SUM.format(kept=SUM_ROWS.format(scope=scope), scope=scope)
    parts = [part for part in cover(SumQuery(start_ms, end_ms, step_ms=0)) if isinstance(part, RollupPart)]
    slots = " OR ".join(f"(level = {part.level} AND slot >= {part.first} AND slot < {part.end})" for part in parts)
    return SUM.format(kept=SUM_SLOTS.format(grouped=GROUPS[kind], slots=slots or "1 = 0"), scope=scope)


def _list_values(values: Sequence[str]) -> str:
    return msgspec.json.encode([[value] for value in values]).decode()


def _make_sums(usd: int, tokens: int, credits: float, nano_credits: int) -> tuple[int, int, float, int]:
    return usd, tokens, credits, nano_credits


def _make_carried(kind: str, name: str, usd: int, tokens: int, credits: int) -> tuple[str, str, int, int, int]:
    return kind, name, usd, tokens, credits
